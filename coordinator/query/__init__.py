"""How does a Spark query become epochs?

The pipeline that a user writes, what is read from Spark inside ``foreachBatch``, and which query plans are refused.
"""
