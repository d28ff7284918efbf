"""How does the kit cause a real fault?

It kills and stops processes, fills disks and changes checkpoints.  A fault counts only if it was seen to happen.
"""
