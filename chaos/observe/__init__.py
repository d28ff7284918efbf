"""What was seen, and does it hold?

The history of a run, readers that see the sinks from outside, and the checker with its invariants.
"""
