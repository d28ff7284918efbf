"""Does the protocol hold in every schedule?

The real coordinator runs over sinks and a log in memory.  Every fault and every pair of faults is tried, state machines
try random steps, and a failure is reduced to a short schedule.
"""
