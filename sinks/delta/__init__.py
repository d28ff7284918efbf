"""How does Delta hold, show and prove an epoch?

The Delta sink: it votes, or merges from the durable copy.

``sink.py`` the arguments and the verbs · ``core.py`` what the verbs share · ``starting.py``, ``fencing.py``,
``preparing.py`` and ``committing.py`` one verb each · ``modes.py`` what a user can ask for · ``target.py`` which table
is meant · ``merge.py`` how rows are merged · ``gates.py`` what a table can hold · ``staged.py`` what is prepared and
not yet visible ·
``history.py`` the epochs that the table's history tells of · ``without_spark.py`` the table by delta-rs ·
``inspection.py`` what the console command asks · ``jvm.py`` all that is private to Delta ·
``refusals.py`` what the sink says when it cannot go on
"""

from epochal.sinks.delta.modes import Append, Merge, Overwrite
from epochal.sinks.delta.sink import DeltaSink

__all__ = ["Append", "DeltaSink", "Merge", "Overwrite"]
