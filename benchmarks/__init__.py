"""What Epochal's sinks cost and what they promise, beside their peers: ``python -m benchmarks --help``.

A *table* (``tables/``) is one question; it lets *jobs* take turns and gives a :class:`~benchmarks.results.Result`.  A
peer (``peers/``) is another way to the same rows.  ``goals.py`` says which ratios are to be reached::

    what is measured on   world.py: servers, Spark, targets; rows.py; topics.py: what is in a topic
    who writes            ours.py; natives.py: Spark's own writers; peers/; names.py: what each job is called
    how                   measuring.py: turns, ratios, spread
    of one table          driver.py, reader.py, peaks.py: other processes (recovery, latency, memory);
                          grown.py, history.py: old queries (growth); targets.py, faults.py, cells.py (consistency)
    what was found        results.py keeps it, stored.py reads it; summary.py, page/ and figures.py show it
"""
