"""The report's colours for light and dark mode.  Page and charts share this table.

The hues are those of Okabe and Ito, which people with any kind of colour blindness can distinguish.  They are darker or
lighter here, so that text on them can be read, and they can be seen on the page.  No fact is shown only by a colour.
"""

from __future__ import annotations

from collections.abc import Mapping

LIGHT: Mapping[str, str] = {
    "paper": "#ffffff",
    "page": "#f5f6f8",
    "ink": "#1b1f24",
    "muted": "#57606a",
    "line": "#d0d7de",
    "grid": "#e4e8ec",
    "link": "#0b5cad",
    "valid": "#00664b",
    "valid-soft": "#e3f3ed",
    "invalid": "#a63a00",
    "invalid-soft": "#fdeee4",
    "unknown": "#6a3d8f",
    "unknown-soft": "#f3ecf9",
    "tape-0": "#cfe3f5",
    "tape-1": "#a9cdec",
    "bar": "#e1e5ea",
    "band": "#9aa4af",
    "kind-0": "#b04a00",
    "kind-1": "#0072b2",
    "kind-2": "#00795a",
    "kind-3": "#a8487f",
    "kind-4": "#7d6a00",
    "kind-5": "#4f5b66",
    "heat-0": "#ffffff",
    "heat-1": "#dbeaf7",
    "heat-2": "#a9cdec",
    "heat-3": "#5d9fd6",
    "heat-4": "#1f6bb0",
    "heat-5": "#0b3d75",
    "heat-ink-0": "#57606a",
    "heat-ink-1": "#1b1f24",
    "heat-ink-2": "#1b1f24",
    "heat-ink-3": "#0b1016",
    "heat-ink-4": "#ffffff",
    "heat-ink-5": "#ffffff",
}

DARK: Mapping[str, str] = {
    "paper": "#161b22",
    "page": "#0d1117",
    "ink": "#e6edf3",
    "muted": "#9aa5b1",
    "line": "#343c46",
    "grid": "#272e37",
    "link": "#79b8ff",
    "valid": "#4fd0a5",
    "valid-soft": "#10281f",
    "invalid": "#ff9d5c",
    "invalid-soft": "#331c0d",
    "unknown": "#cfa6f2",
    "unknown-soft": "#271a33",
    "tape-0": "#1d3a56",
    "tape-1": "#2a5078",
    "bar": "#30373f",
    "band": "#6b7580",
    "kind-0": "#ff9d5c",
    "kind-1": "#5bb5f0",
    "kind-2": "#4fd0a5",
    "kind-3": "#e79ac6",
    "kind-4": "#e0cf4a",
    "kind-5": "#aab4bf",
    "heat-0": "#161b22",
    "heat-1": "#16324c",
    "heat-2": "#1f4d78",
    "heat-3": "#3378b5",
    "heat-4": "#6fb1ea",
    "heat-5": "#c4e2fb",
    "heat-ink-0": "#9aa5b1",
    "heat-ink-1": "#e6edf3",
    "heat-ink-2": "#e6edf3",
    "heat-ink-3": "#ffffff",
    "heat-ink-4": "#0b1016",
    "heat-ink-5": "#0b1016",
}

KINDS = 6  # number of colours for kinds of faults; more kinds share colours, and differ in letter and shape


def variables(colours: Mapping[str, str]) -> str:
    """Return the table as CSS variables."""
    return "".join(f"--{name}:{value};" for name, value in colours.items())
