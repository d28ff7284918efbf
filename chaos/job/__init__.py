"""Which job is struck?

The workloads, the targets (a sink, a pipeline or a function of a user) and the program that a driver process runs.
"""
