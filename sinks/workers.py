"""The Python worker that a task of Spark runs in, whatever the sink."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_OURS = "/proc/self/fd"


def promptly(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """``batches`` that Spark's JVM sends, without its wait for an acknowledgement between rows and end.

    The few bytes that say that no batch follows are sent once those before are acknowledged (Nagle's algorithm), which
    Linux puts off for 40 ms (RFC 1122, 4.2.3.2): longer than all that a small epoch's task does.  With
    ``spark.python.unix.domain.socket.enabled`` there is nothing to wait for.
    """
    for batch in batches:
        acknowledge()
        yield batch


def acknowledge() -> None:
    """What TCP connections of this process have received; a hint to the kernel, where it knows one.

    None is given where somebody has set ``socket.setdefaulttimeout``, as a function of the user's or a library of its
    may: each socket object that is made then, of an open file too, would make that file one that does not wait, the
    JVM's connection among them.
    """
    if not hasattr(socket, "TCP_QUICKACK") or socket.getdefaulttimeout() is not None:
        return
    for number in _open_files():
        with contextlib.suppress(OSError):  # no socket, none of TCP, or closed by now
            found = socket.socket(fileno=number)
            try:
                found.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            finally:
                found.detach()  # it stays its owner's


def _open_files() -> list[int]:
    try:
        return [int(name) for name in os.listdir(_OURS)]
    except OSError:
        return []
