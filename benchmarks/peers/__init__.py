"""Other ways to the same rows, each at its best documented settings and with the same durability as ours.

Every function here makes a ``foreachBatch`` function, or says in its name that it is none.
"""
