"""The Python worker that a task of Spark runs in, whatever the sink."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
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


# --- values, made of their bytes ------------------------------------------------------------------------
#
# ``pyarrow.array``, ``pyarrow.scalar`` and ``to_numpy`` load pandas, 0.2 s and tens of MB of a worker that has no other
# use for it, to see whether they were given something of its.


def answer(**texts: str) -> pa.RecordBatch:
    """One row, a column of type ``string`` for each of them."""
    import pyarrow as pa

    columns = [_array(pa.string(), struct.pack("=2i", 0, len(data)), data) for data in map(str.encode, texts.values())]
    return pa.RecordBatch.from_arrays(columns, names=list(texts))


def of_bytes(kind: pa.DataType, data: bytes) -> pa.Scalar:
    """A value of a type of fixed length: the first bytes of ``data``, in this machine's order."""
    return _array(kind, data)[0]


def large_binary(data: bytes) -> pa.Scalar:
    """A value of type ``large_binary``."""
    import pyarrow as pa

    return _array(pa.large_binary(), struct.pack("=2q", 0, len(data)), data)[0]


def _array(kind: pa.DataType, *buffers: bytes) -> pa.Array:
    """Of one value, which is not NULL."""
    import pyarrow as pa

    return pa.Array.from_buffers(kind, 1, [None, *map(pa.py_buffer, buffers)])
