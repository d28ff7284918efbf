"""Growth of the Kafka sink: see :mod:`benchmarks.tables.growth`."""

from __future__ import annotations

from functools import partial

from benchmarks.tables import growth

run = partial(growth.run, "kafka")
