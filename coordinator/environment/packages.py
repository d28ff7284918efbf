"""Which packages that Epochal works with are installed in this Python, and in which version."""

from __future__ import annotations

import importlib.metadata

NAMES = (
    *("pyspark", "delta-spark", "deltalake", "confluent-kafka", "psycopg", "psycopg-binary", "psycopg-c"),
    *("pyarrow", "numpy", "pandas", "opentelemetry-api"),
)
"""Names of distributions.  One that is on Python's path without having been installed is not found."""


def installed() -> str:
    """Return the packages with their versions, for people; nothing is imported."""
    found = {name: _version(name) for name in NAMES}
    there = [f"{name} {version}" for name, version in found.items() if version]
    lacking = [name for name, version in found.items() if not version]
    return ", ".join(there) + (f"; not installed: {', '.join(lacking)}" if lacking else "")


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
