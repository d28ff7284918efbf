"""What was decided, and where is it kept?

``log.py`` is the protocol of an epoch log and its records; ``memory.py``, ``files.py``, ``hadoop.py`` and
``postgres.py`` are the logs; ``names.py`` and ``rules.py`` are what they share.
"""
