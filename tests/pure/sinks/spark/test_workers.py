"""What a Python worker of Spark does for its task, over real TCP connections."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

import pytest

from epochal.sinks.spark.workers import promptly

pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="Linux alone puts it off so")


@pytest.fixture
def connection() -> Iterator[socket.socket]:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        yield stack.enter_context(socket.create_connection(server.getsockname(), timeout=60))


def is_prompt(connection: socket.socket) -> bool:
    return bool(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK))


def put_off(connection: socket.socket) -> None:
    """Acknowledgements, as on a connection where answers used to follow questions."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
    assert not is_prompt(connection)


def test_every_batch_is_acknowledged_before_the_next_is_asked_for(connection: socket.socket) -> None:
    seen = []
    for batch in promptly(iter("ab")):
        seen.append((batch, is_prompt(connection)))
        put_off(connection)
    assert seen == [("a", True), ("b", True)]


def test_the_task_itself_is_acknowledged_before_the_first_batch_is_asked_for(connection: socket.socket) -> None:
    asked = []

    def sent() -> Iterator[str]:
        asked.append(is_prompt(connection))
        yield "a"

    put_off(connection)
    assert list(promptly(sent())) == ["a"]
    assert asked == [True]


def test_connections_stay_open_and_other_files_are_left_alone(connection: socket.socket) -> None:
    with contextlib.ExitStack() as stack:
        pair = [stack.enter_context(one) for one in socket.socketpair()]
        read, write = os.pipe()
        stack.callback(os.close, read)
        stack.callback(os.close, write)
        assert list(promptly(iter("a"))) == ["a"]
        pair[0].sendall(b"x")
        os.write(write, b"y")
        assert (pair[1].recv(1), os.read(read, 1)) == (b"x", b"y")
    assert connection.getpeername()


def test_a_default_timeout_of_somebody_else_leaves_connections_that_wait() -> None:
    """Else the JVM's own would fail the next read of rows that are not there yet."""
    with contextlib.ExitStack() as stack:
        pair = [stack.enter_context(one) for one in socket.socketpair()]
        stack.callback(socket.setdefaulttimeout, socket.getdefaulttimeout())
        socket.setdefaulttimeout(10)
        assert list(promptly(iter("a"))) == ["a"]
        assert [os.get_blocking(one.fileno()) for one in pair] == [True, True]
