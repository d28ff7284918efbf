"""What did a run show, and do the invariants hold?

The history of a run, the readers that see the sinks from outside, and the checker of the invariants.
"""
