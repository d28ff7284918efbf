"""What was decided, and where is it kept?

``log.py`` defines the methods of an epoch log and its records.  ``memory.py``, ``files.py``, ``hadoop.py``,
``objects.py`` and ``postgres.py`` are the implementations.  ``names.py`` and ``rules.py`` hold what they share;
``bucket.py``, ``s3.py`` and ``s3a.py`` are the client of ``objects.py``.
``place.py`` says what is known of the disk that a checkpoint lies on.
"""
