"""Who decides?  The rooms are model, environment, telemetry, protocol, query and console."""
