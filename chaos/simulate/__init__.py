"""Does the protocol hold in every schedule?

The real coordinator over sinks and a log in memory: every fault and every pair of faults, state machines, and the
shortest schedule that shows a failure.
"""
