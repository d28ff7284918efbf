"""The Postgres append sink: it votes.

Prepared rows lie in ``<table>__rows`` under the next position, where the reader view does not show
them; commit moves one number.  Read in this order:

- ``sink.py``     the six verbs: what is asked of the server, and in which order
- ``write.py``    a task's part: COPY, register, look at the fence, COMMIT, vote
- ``rows.py``     Spark's types as Postgres's, and rows as lines of COPY text
- ``ddl.py``      what must exist, how it is made, and what is refused
- ``blockers.py`` who holds the sink's row for too long, and is ended
- ``client.py``   where the server is, and which waits are bounded how (no psycopg needed)
- ``session.py``  one connection (the only file that imports psycopg)
"""

from epochal.sinks.postgres.sink import PostgresSink

__all__ = ["PostgresSink"]
