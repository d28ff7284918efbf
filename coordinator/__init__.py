"""Who decides?  The sub-packages are model, environment, telemetry, protocol, query and console."""
