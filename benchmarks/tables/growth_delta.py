"""Growth of the Delta sink, compared with Spark's own append: see :mod:`benchmarks.tables.growth`."""

from __future__ import annotations

from functools import partial

from benchmarks.tables import growth

run = partial(growth.run, "delta")
