"""Who decides?  The rooms below: the model, the protocol, the Spark query, telemetry, the console."""
