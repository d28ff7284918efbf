"""Observe a run and judge it.

This package holds the history of a run, the readers that see the sinks from outside, and the checker of the invariants.
"""
