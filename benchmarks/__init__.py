"""What do Epochal's sinks cost and promise, compared with their peers?  ``python -m benchmarks --help``.

A *table* (``tables/``) answers one question.  It lets *jobs* take turns and returns a
:class:`~benchmarks.results.Result`.  A *peer* (``peers/``) is another way to write the same rows.  ``goals.py`` says
which ratios must be reached::

    environment           world.py: servers, Spark, targets; rows.py: rows; topics.py: content of a topic
    writers               ours.py; natives.py: Spark's own writers; peers/; names.py: the names of all jobs
    method                measuring.py: turns, ratios, spread
    for one table         driver.py, reader.py, peaks.py: other processes (recovery, latency, memory);
                          grown.py, history.py: old queries (growth); targets.py, faults.py, cells.py (consistency)
    results               results.py stores them, stored.py reads them; summary.py, page/ and figures.py show them
"""
