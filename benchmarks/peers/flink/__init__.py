"""How does Flink write the same rows?  This runs its released KafkaSink, in its own environment and process.

``environment`` makes the environment.  ``job`` is the program in it.  ``session`` starts the program and talks to it.
``endless`` is the program of an endless job, and ``starts`` starts it.
"""
