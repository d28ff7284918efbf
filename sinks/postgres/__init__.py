"""How does Postgres hold, show and prove an epoch?

The Postgres sink: it votes.

Prepared rows lie in ``<table>__rows`` under the next position, where the reader view does not show
them, and commit moves one number; or they wait in ``<table>__staged``, and commit writes them into the
table itself.  Read in this order:

- ``sink.py``     the verbs: what is asked of the server, and in which order
- ``write.py``    a task's part: COPY, register, look at the fence, COMMIT, vote
- ``modes.py``    what a user can ask for: append, plain, upsert
- ``publish.py``  how staged rows go into the table, and what is asked of them before
- ``rows.py``     Spark's types as Postgres's
- ``binary.py``   Arrow columns as rows of binary COPY
- ``ddl.py``      names, SQL and look-ups of what must exist
- ``creating.py`` makes what is missing
- ``checking.py`` refuses what can never work; ``rights.py``: which rights a role needs
- ``staging.py``  the same for the modes that stage
- ``evolution.py`` columns that are new in the query
- ``audit.py``    what the audit says of the epochs that are shown, and for how long
- ``blockers.py`` who holds the sink's row for too long, and is ended
- ``client.py``   where the server is, and which waits are bounded how (no psycopg needed)
- ``session.py``  one connection (the only file that imports psycopg)
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
