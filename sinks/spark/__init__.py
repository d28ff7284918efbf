"""How does a sink use Spark's tasks and threads?

This package holds the durable copy of an epoch, checks of executors, helpers for Python workers, and threads that
have Spark's session.
"""
