"""How else can the same rows be written?

Each peer has its best documented settings, and the same durability as ours.

Most functions here make a ``foreachBatch`` function.  The others say what they do instead.
"""
