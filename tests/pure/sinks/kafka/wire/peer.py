"""A peer on loopback that does what no real broker does on demand: stay silent, lie, stop in the middle."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator

from epochal.sinks.kafka.wire.messages import Address

Script = Callable[[socket.socket], None]
PATIENT_S = 60.0


@contextlib.contextmanager
def peer(*scripts: Script, context: ssl.SSLContext | None = None) -> Iterator[Address]:
    """Serve one connection after another, each with the next script; close it when the script ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENT_S)
        failed: list[BaseException] = []
        thread = threading.Thread(target=_serve, args=(listener, scripts, context, failed), daemon=True)
        thread.start()
        yield Address(*listener.getsockname())
        thread.join(PATIENT_S)
    assert not thread.is_alive(), "the peer still waits"
    assert not failed, failed


def _serve(
    listener: socket.socket, scripts: tuple[Script, ...], context: ssl.SSLContext | None, failed: list[BaseException]
) -> None:
    for script in scripts:
        try:
            accepted, _ = listener.accept()
            with accepted:
                accepted.settimeout(PATIENT_S)
                if context is None:
                    script(accepted)
                else:
                    with contextlib.suppress(OSError), context.wrap_socket(accepted, server_side=True) as secured:
                        script(secured)
        except BaseException as error:  # shown by the test
            failed.append(error)


def exactly(accepted: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        part = accepted.recv(min(1 << 20, length - len(data)))
        if not part:
            raise AssertionError(f"the client closed after {len(data)} of {length} bytes")
        data += part
    return bytes(data)


def request(accepted: socket.socket) -> bytes:
    """One request with its length."""
    head = exactly(accepted, 4)
    return head + exactly(accepted, int.from_bytes(head, "big"))


def correlation(framed: bytes) -> bytes:
    return framed[8:12]


def answer(accepted: socket.socket, framed: bytes, body: bytes) -> None:
    """Answer a request with this body."""
    accepted.sendall((4 + len(body)).to_bytes(4, "big") + correlation(framed) + body)


def closed(accepted: socket.socket) -> None:
    """Wait until the client closes."""
    with contextlib.suppress(OSError):
        while accepted.recv(1 << 16):
            pass
