"""``dsn=`` as a function: what it raises or returns by mistake is named, and never shown."""

from __future__ import annotations

from typing import Any

import pytest

from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.postgres.address import Limits
from epochal.sinks.postgres.client import Connector

SECRET = "s3cret"


def raising() -> str:
    raise KeyError(SECRET)


def returning() -> Any:
    return SECRET.encode()


@pytest.mark.remedy("the function of dsn= …", "see that what it reads (the environment, a file, a vault) is there")
@pytest.mark.parametrize(("dsn", "said"), [(raising, "raised KeyError"), (returning, "returned bytes, not a text")])
def test_a_function_that_gives_no_connection_string_is_named(dsn: Any, said: str) -> None:
    """The KeyError came out as it was, and bytes ended inside psycopg."""
    with pytest.raises(Misconfigured, match=f"the function of dsn= {said}") as refused:
        Connector(dsn, "out", Limits()).address()
    assert SECRET not in str(refused.value)
    assert Connector(lambda: SECRET, "out", Limits()).address().conninfo == SECRET
