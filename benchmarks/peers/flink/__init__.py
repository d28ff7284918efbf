"""Flink's KafkaSink, released, in an environment and a process of its own.

``environment`` makes that environment, ``job`` is the program in it, ``session`` starts the program and talks to it.
"""
