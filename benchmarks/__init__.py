"""What Epochal's sinks cost and what they promise, beside their peers: ``python -m benchmarks --help``.

A *table* (``tables/``) is one question; it lets *jobs* take turns and gives a :class:`~benchmarks.results.Result`.  A
peer (``peers/``) is another way to the same rows.  ``goals.py`` says which ratios are to be reached.
"""
