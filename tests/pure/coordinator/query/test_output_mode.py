"""Which sinks can show what a query hands over in its output mode."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from epochal.coordinator.model.errors import Misconfigured
from epochal.coordinator.query.spark import check_output_mode
from epochal.sinks import DeltaSink, KafkaSink
from epochal.sinks.delta import Merge, Overwrite
from epochal.sinks.protocol import Sink

REPLACING = DeltaSink("/replaced", mode=Overwrite())
ADDING: Sequence[Sink] = (DeltaSink("/t"), DeltaSink("/m", mode=Merge(key="id")), KafkaSink("x:1", topic="k"))


@pytest.mark.parametrize("mode", ["append", "update", "Append"])
def test_every_sink_takes_rows_that_are_new(mode: str) -> None:
    check_output_mode(mode, [REPLACING, *ADDING])


@pytest.mark.remedy(
    "output mode … hands over the whole result in every epoch, and these sinks do not replace what they show: …",
    'use outputMode("append"), or "update" where a reader keeps the newest row per key; or'
    " DeltaSink(mode=Overwrite()), if every sink is of this kind",
)
def test_the_whole_result_is_for_sinks_that_replace() -> None:
    check_output_mode("complete", [REPLACING, DeltaSink("/other", mode=Overwrite())])
    with pytest.raises(Misconfigured) as refused:
        check_output_mode("complete", [REPLACING, *ADDING])
    assert refused.value.what.endswith("these sinks do not replace what they show: delta-t, delta-m, kafka-k")
    for mode in ("append", "update"):
        check_output_mode(mode, [REPLACING, *ADDING])
    check_output_mode("complete", [DeltaSink("/t", mode=Overwrite())])


@pytest.mark.remedy("output mode … is none of Spark's", 'use outputMode("append"), "update" or "complete"')
def test_an_output_mode_that_nobody_knows_is_refused() -> None:
    with pytest.raises(Misconfigured, match="'sideways' is none of Spark's"):
        check_output_mode("sideways", [REPLACING])
    for mode in ("append", "update", "complete"):
        check_output_mode(mode, [REPLACING])
