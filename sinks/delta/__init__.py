"""Delta tables: a sink that votes.  ``sink`` is the protocol, ``modes`` what a user can ask for, ``merge`` how rows are
merged, ``jvm`` all that is private to Delta, ``gates`` what a table can hold, ``staged`` what is prepared and not yet
visible."""

from epochal.sinks.delta.modes import Append, Merge, Overwrite
from epochal.sinks.delta.sink import DeltaSink

__all__ = ["Append", "DeltaSink", "Merge", "Overwrite"]
