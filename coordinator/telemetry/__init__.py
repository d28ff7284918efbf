"""Who learns what happens in an epoch?

This folder turns events into log records, metrics, OpenTelemetry spans and a progress line.  It imports only the model.
The protocol publishes the events and depends on no answer.
"""
