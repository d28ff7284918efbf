"""The settings of a server and a role that matter to a sink: their values, and what a start warns about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochal.sinks.questions import Answer

if TYPE_CHECKING:
    from epochal.sinks.postgres.session import Session

_DURABLE = {
    "fsync": "a crash of the server's machine can lose committed epochs",
    "full_page_writes": "a crash of the server's machine can damage committed epochs",
}
"""Settings without which the server loses what it has acknowledged, and how."""
_OTHERS = ("wal_level", "synchronous_standby_names", "max_connections", "max_worker_processes", "TimeZone")
_SET_BY_US = ("synchronous_commit", "lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
"""Settings that every transaction of a sink sets for itself, whatever server, database and role say."""


def told(session: Session) -> Answer:
    """Return the settings of the server, and cautions about those under which it loses what it has acknowledged."""
    found = {
        str(name): str(value)
        for name, value in session.run(
            "SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY($1)",
            [*_DURABLE, *_OTHERS],
        )
    }
    cautions = [
        f"the server has {name}={found[name]}: {harm}; set it to on"
        for name, harm in _DURABLE.items()
        if found.get(name, "on") != "on"
    ]
    values = ", ".join(f"{name}={value}" for name, value in sorted(found.items()))
    return Answer(f"{values}; set by Epochal itself: {', '.join(_SET_BY_US)}", cautions)
