"""How does a sink use Spark's tasks and threads?

The durable copy of an epoch, work on executors, Python workers, and threads that see Spark's session.
"""
