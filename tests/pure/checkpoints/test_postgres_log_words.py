"""What the log in Postgres says of a server that is not there: where it looked, and never the password."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochal.checkpoints.postgres import PostgresLog
from epochal.coordinator.model.errors import SinkUnavailable


def words(log: PostgresLog) -> str:
    with pytest.raises(SinkUnavailable, match="the read of the epoch log failed") as raised:
        log.read()
    return raised.value.what


def test_a_password_is_masked_in_what_the_driver_says(tmp_path: Path) -> None:
    """The driver names the socket's folder, which is the password here."""
    folder = tmp_path / "s3cret"
    assert "***/.s.PGSQL.5432" in words(PostgresLog(f"host={folder} dbname=lake password=s3cret", "flights"))


def test_without_a_password_nothing_is_masked_and_the_default_port_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "None"
    log = PostgresLog(f"host={folder} dbname=lake", "flights")
    assert f"{folder}/.s.PGSQL.5432" in words(log)
    assert log.describe() == f"postgres:{folder}:5432/lake, log 'flights'"
