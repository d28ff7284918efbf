"""Other ways to write the same rows, each with its best documented settings and with the same durability as ours.

Most functions here make a ``foreachBatch`` function.  The others say what they do instead.
"""
