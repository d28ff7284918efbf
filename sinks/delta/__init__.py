"""Delta tables: a sink that votes.  ``sink`` is the protocol, ``jvm`` all that is private to Delta,
``gates`` what a table can hold, ``staged`` what is prepared and not yet visible."""

from epochal.sinks.delta.sink import DeltaSink

__all__ = ["DeltaSink"]
