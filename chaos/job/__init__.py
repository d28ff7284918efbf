"""Which job is struck?

The workloads, the targets (a sink, a pipeline or a user's function), and the program that a driver process runs.
"""
