"""Helpers for code that runs in Spark's Python workers, for every sink."""

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
    """Yield the ``batches`` that Spark's JVM sends; acknowledge at once what has arrived, so that more arrives sooner.

    The JVM sends less than a packet only when the bytes before it are acknowledged (Nagle's algorithm), and Linux
    delays an acknowledgement by 40 ms (RFC 1122, 4.2.3.2).  That is longer than the whole task of a small epoch.  It
    happens twice: the first batch of a few rows follows the task itself, and a few bytes that say that no batch follows
    come after the last one.  With ``spark.python.unix.domain.socket.enabled`` there is no such delay.
    """
    acknowledge()
    for batch in batches:
        acknowledge()
        yield batch


def acknowledge() -> None:
    """Ask the kernel to acknowledge now what the TCP connections of this process have received.

    Does nothing on a kernel without ``TCP_QUICKACK``.  Does nothing either if ``socket.setdefaulttimeout`` is set, as
    a user's function or a library may do.  Then every new socket object, also one for an open file, would make that
    file non-blocking, and one of these files is the connection to the JVM.
    """
    if not hasattr(socket, "TCP_QUICKACK") or socket.getdefaulttimeout() is not None:
        return
    for number in _open_files():
        with contextlib.suppress(OSError):  # not a socket, not TCP, or closed meanwhile
            found = socket.socket(fileno=number)
            try:
                found.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            finally:
                found.detach()  # the file belongs to another object, and must stay open


def _open_files() -> list[int]:
    try:
        return [int(name) for name in os.listdir(_OURS)]
    except OSError:
        return []


def task() -> int:
    """Return the number of this task among those of its stage; 0 outside a task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


def is_repeated() -> bool:
    """Return whether Spark has begun this task before; False outside a task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0


# --- Arrow values, made from bytes ----------------------------------------------------------------------
#
# ``pyarrow.array``, ``pyarrow.scalar`` and ``to_numpy`` import pandas, only to check whether they got a pandas object.
# That costs 0.2 s and tens of MB, in a worker that does not use pandas otherwise.


def answer(**texts: str) -> pa.RecordBatch:
    """Return one row with a column of type ``string`` for each text."""
    import pyarrow as pa

    columns = [_array(pa.string(), struct.pack("=2i", 0, len(data)), data) for data in map(str.encode, texts.values())]
    return pa.RecordBatch.from_arrays(columns, names=list(texts))


def of_bytes(kind: pa.DataType, data: bytes) -> pa.Scalar:
    """Return a value of a type of fixed length, from the first bytes of ``data`` in this machine's byte order."""
    return _array(kind, data)[0]


def large_binary(data: bytes) -> pa.Scalar:
    """Return a value of type ``large_binary``."""
    import pyarrow as pa

    return _array(pa.large_binary(), struct.pack("=2q", 0, len(data)), data)[0]


def _array(kind: pa.DataType, *buffers: bytes) -> pa.Array:
    """Return an array of one value that is not NULL."""
    import pyarrow as pa

    return pa.Array.from_buffers(kind, 1, [None, *map(pa.py_buffer, buffers)])
