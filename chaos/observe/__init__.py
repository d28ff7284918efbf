"""What did a run show, and do the invariants hold?

The history of a run, the readers that see the sinks from outside, the invariants, and the checker.
"""
