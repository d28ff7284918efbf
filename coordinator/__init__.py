"""Who decides whether an epoch is committed?

The sub-packages are model, environment, telemetry, protocol, query and console.
"""
