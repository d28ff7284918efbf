"""A run of the demo as one self-contained HTML page, with the picture and its data as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epochal.chaos.demo.picture import TITLES, picture
from epochal.chaos.demo.votes import told
from epochal.chaos.report import blocks
from epochal.chaos.report.text import element

TITLE = "The same job twice under the same kind of fire"


def page(run: Mapping[str, Any]) -> str:
    """Return the page of a run (see ``record.py``).  It works without a network."""
    return blocks.document(
        TITLE,
        [
            element("h1", TITLE),
            element("p", *[f"{name}: {TITLES[name]}. " for name in run["jobs"]]),
            blocks.picture(picture(run)),
            _sinks(run),
            *[element("p", told(job["votes"], job["epochs"])) for job in run["jobs"].values() if "votes" in job],
            _strikes(run),
        ],
    )


def _sinks(run: Mapping[str, Any]) -> str:
    columns = ("expected", "found", "lost", "duplicated", "wrong")
    rows = [
        blocks.row(name, sink, *(blocks.number(found[column]) for column in columns))
        for name, job in run["jobs"].items()
        for sink, found in job["sinks"].items()
    ]
    return blocks.table("Rows per sink, counted over all columns", ("job", "sink", *columns), rows, numbers=range(2, 7))


def _strikes(run: Mapping[str, Any]) -> str:
    rows = [
        blocks.row(
            name,
            blocks.number(f"{strike['at']:.1f}"),
            strike["when"],
            strike["victim"],
            ", ".join(map(str, strike["signals"])),
            blocks.number(strike["epoch"]),
            strike["outcome"],
        )
        for name, job in run["jobs"].items()
        for strike in job["strikes"]
    ]
    heads = ("job", "second", "when", "killed", "signal", "epoch", "what recovery did")
    return blocks.table("Strikes, in their order", heads, rows, numbers=(1, 5))
