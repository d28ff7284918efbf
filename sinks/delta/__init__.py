"""How does Delta hold, show and prove an epoch?

This package holds the Delta sink.  It votes on prepared data files, or merges from the durable copy.

``sink.py`` the arguments and methods · ``core.py`` what the methods share · ``starting.py``, ``fencing.py``,
``preparing.py`` and ``committing.py`` the steps of the protocol · ``modes.py`` the modes · ``target.py`` which table
to write · ``merge.py`` how rows are merged · ``gates.py`` what a table can hold · ``staged.py`` what is prepared and
not yet visible ·
``history.py`` the epochs in the table's history · ``without_spark.py`` reads the table with delta-rs ·
``inspection.py`` the answers for the console command · ``jvm.py`` all use of Delta's private API ·
``renames.py`` columns that the table has renamed ·
``refusals.py`` the errors of the sink
"""

from epochal.sinks.delta.modes import Append, Merge, Overwrite
from epochal.sinks.delta.sink import DeltaSink

__all__ = ["Append", "DeltaSink", "Merge", "Overwrite"]
