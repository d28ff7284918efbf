"""Who is told what happens?

Events become log records, metrics, OpenTelemetry spans and a progress line.  Imports the model alone; the protocol
reports to it and never waits for it.
"""
