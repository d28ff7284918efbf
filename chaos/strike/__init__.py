"""How is something broken for real?

Processes are killed and stopped, disks filled, checkpoints changed.  Each fault is seen to have happened, or it does
not count.
"""
