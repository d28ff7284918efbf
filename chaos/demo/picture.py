"""A run of the demo as one SVG picture: two timelines with their strikes, and what was found in each sink.

    python -m epochal.chaos.demo.picture docs

draws ``docs/demo.svg`` again from ``docs/demo.json``.  The picture depends only on the data, so the same data give the
same bytes on every machine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from epochal.chaos.report.palette import LIGHT

WIDTH = 860
LEFT, RIGHT = 92, 24
AXIS = WIDTH - LEFT - RIGHT
TITLES = {"naive": "a plain foreachBatch", "ours": "one Epochal pipeline"}
COLOURS = {"driver": "kind-0", "worker": "kind-1", "kafka": "kind-3", "postgres": "kind-4"}
"""Victim -> its colour."""


def picture(run: Mapping[str, Any]) -> str:
    """Return the SVG of a run.  It has no script and loads nothing."""
    parts: list[str] = []
    longest = max(job["seconds"] for job in run["jobs"].values())
    y = 30.0
    for name, job in run["jobs"].items():
        parts += _timeline(name, job, longest, y)
        y += 64
    parts += _axis(longest, y - 18)
    y += 26
    parts += _legend(run, y)
    y += 34
    most = max(found["expected"] + found["duplicated"] + found["wrong"] for found in _sinks(run))
    for name, job in run["jobs"].items():
        parts += _bars(name, job, most, y)
        y += 28 + 26 * len(job["sinks"])
    description = "; ".join(_sentence(name, job) for name, job in run["jobs"].items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y:g}" width="{WIDTH}" height="{y:g}"'
        f' role="img" font-family="system-ui, sans-serif" font-size="13" aria-label="{escape(description)}">\n'
        f'<rect width="100%" height="100%" fill="{LIGHT["paper"]}"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _sinks(run: Mapping[str, Any]) -> Iterator[Mapping[str, int]]:
    for job in run["jobs"].values():
        yield from job["sinks"].values()


def _sentence(name: str, job: Mapping[str, Any]) -> str:
    found = ", ".join(
        f"{sink} lost {n['lost']:,} and duplicated {n['duplicated']:,}" for sink, n in job["sinks"].items()
    )
    return f"{TITLES[name]} after {len(job['strikes'])} kills: {found}"


def _text(x: float, y: float, text: str, colour: str = "ink", **more: str) -> str:
    attributes = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in more.items())
    return f'<text x="{x:g}" y="{y:g}" fill="{LIGHT[colour]}"{attributes}>{escape(text)}</text>'


def _rect(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:g}" width="{max(width, 0):.1f}" height="{height:g}" fill="{LIGHT[colour]}"/>'


def _timeline(name: str, job: Mapping[str, Any], longest: float, y: float) -> list[str]:
    """One bar as long as the job took, and a cross for each strike."""
    parts = [
        _text(LEFT, y - 12, f"{TITLES[name]}: {job['epochs']} epochs, {len(job['strikes'])} kills", font_weight="600"),
        _text(LEFT - 10, y + 14, name, "muted", text_anchor="end"),
        _rect(LEFT, y, AXIS * job["seconds"] / longest, 20, "tape-0"),
    ]
    for strike in job["strikes"]:
        x, colour = LEFT + AXIS * strike["at"] / longest, LIGHT[COLOURS[strike["victim"]]]
        label = f"{strike['when']}, epoch {strike['epoch']}: {strike['outcome']}"
        parts.append(
            f'<g stroke="{colour}" stroke-width="3"><title>{escape(label)}</title>'
            f'<path d="M{x - 5:.1f} {y + 5:g}l10 10m0 -10l-10 10"/></g>'
        )
    return parts


def _axis(longest: float, y: float) -> list[str]:
    step = next(step for step in (10, 20, 30, 60, 120, 300, 600) if longest / step <= 8)
    ticks = range(0, int(longest) + 1, step)
    return [_text(LEFT + AXIS * tick / longest, y, f"{tick} s", "muted", text_anchor="middle") for tick in ticks]


def _legend(run: Mapping[str, Any], y: float) -> list[str]:
    """One cross for each kind of victim."""
    parts, x = [_text(LEFT - 10, y + 10, "killed:", "muted", text_anchor="end")], float(LEFT)
    victims = {strike["victim"] for job in run["jobs"].values() for strike in job["strikes"]}
    for victim, colour in COLOURS.items():
        if victim in victims:
            parts.append(f'<path d="M{x:g} {y:g}l10 10m0 -10l-10 10" stroke="{LIGHT[colour]}" stroke-width="3"/>')
            parts.append(_text(x + 16, y + 10, victim))
            x += 36 + 8 * len(victim)
    return parts


def _bars(name: str, job: Mapping[str, Any], most: int, y: float) -> list[str]:
    """Per sink: first rows that were found as expected, then surplus or wrong rows, then lost rows."""
    parts = [_text(LEFT, y + 6, f"{TITLES[name]}: what independent readers find", font_weight="600")]
    room = AXIS - 300
    for place, (sink, n) in enumerate(job["sinks"].items()):
        top = y + 18 + 26 * place
        right = n["expected"] - n["lost"]
        good, twice = room * right / most, room * (n["duplicated"] + n["wrong"]) / most
        exact = not (n["lost"] or n["duplicated"] or n["wrong"])
        parts.append(_text(LEFT - 10, top + 13, sink, "muted", text_anchor="end"))
        parts.append(_rect(LEFT, top, good, 18, "valid" if exact else "band"))
        parts.append(_rect(LEFT + good, top, twice, 18, "invalid"))
        parts.append(_rect(LEFT + good + twice, top, room * n["lost"] / most, 18, "unknown"))
        words = f"{n['expected']:,} expected, exact" if exact else _differences(n)
        parts.append(_text(LEFT + room + 12, top + 13, words, "valid" if exact else "invalid"))
    return parts


def _differences(n: Mapping[str, int]) -> str:
    parts = [f"{n[what]:,} {what}" for what in ("lost", "duplicated", "wrong") if n[what]]
    return ", ".join(parts)


def main(folder: Path) -> None:
    run = json.loads((folder / "demo.json").read_text(encoding="utf-8"))
    (folder / "demo.svg").write_text(picture(run), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
