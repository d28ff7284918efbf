"""How does Postgres hold the rows of an epoch, show them, and prove that the epoch is committed?

Prepared rows lie in ``<table>__rows`` (or ``<table>__staged``) under the next position, where no reader sees them.

On the driver: ``sink.py`` has the arguments and the methods of the sink.  ``starting.py``, ``fencing.py``,
``preparing.py`` and ``committing.py`` implement these methods, and ``core.py`` has what they share.
In a task: ``write.py`` copies rows and registers them, ``binary.py`` encodes rows for binary COPY.
What Postgres holds: ``ddl.py`` the SQL of tables and view, ``creating.py`` makes them, ``checking.py`` refuses what
can never work, ``rights.py`` the rights that a role needs, ``settings.py`` what the server is set to; ``staging.py``
and ``publish.py`` the modes that stage (``modes.py``), ``audit.py`` past epochs, ``rows.py`` types and values,
``evolution.py`` new columns, ``advice.py`` SQL for a DBA.
Connections: ``address.py``, ``client.py``, ``session.py`` (the only file that imports psycopg), ``blockers.py``.
"""

from typing import TYPE_CHECKING

from epochal.coordinator.environment.lazy import when_asked

if TYPE_CHECKING:
    from epochal.sinks.postgres.modes import Append, Plain, Upsert
    from epochal.sinks.postgres.sink import PostgresSink
else:
    __getattr__, __dir__ = when_asked(
        globals(),
        {
            "Append": "epochal.sinks.postgres.modes",
            "Plain": "epochal.sinks.postgres.modes",
            "PostgresSink": "epochal.sinks.postgres.sink",
            "Upsert": "epochal.sinks.postgres.modes",
        },
    )

__all__ = ["Append", "Plain", "PostgresSink", "Upsert"]
