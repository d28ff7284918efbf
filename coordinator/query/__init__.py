"""How does a Spark query become epochs?

This folder has the pipeline that a user makes, what it reads from Spark inside ``foreachBatch``, the query plans that
are refused, and what an operator decides about a stopped query.
"""
