"""Take Arrow's columns apart with numpy, and make columns of what numpy computed.

``pyarrow.array``, ``pyarrow.scalar`` and ``to_numpy`` import pandas, only to check whether they got a pandas object.
So columns are made from buffers here, and buffers are read as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import pyarrow

    Numbers: TypeAlias = np.ndarray[Any, np.dtype[Any]]

LARGEST = (1 << 31) - 1
"""How many bytes a column of type ``binary`` can hold."""


def binary(offsets: Numbers, data: Any) -> pyarrow.Array:
    """Return a column of bytes without NULLs: value n lies between offsets n and n + 1 (int32) of ``data``."""
    import pyarrow as pa

    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def of_lengths(lengths: Numbers, data: Any) -> pyarrow.Array:
    """Return a column of bytes without NULLs, of values that lie behind each other in ``data``."""
    return binary(running(lengths), data)


def running(lengths: Numbers) -> Numbers:
    """Return where each value begins, and where the last one ends."""
    import numpy as np

    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def constant(data: bytes) -> pyarrow.Scalar:
    """Return a value that is the same for all rows."""
    import numpy as np

    return binary(np.array([0, len(data)], np.int32), data)[0]


def indices(order: Numbers) -> pyarrow.Array:
    """Return row numbers (int64) as Arrow's ``take`` wants them."""
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int64(), len(order), [None, pa.py_buffer(order)])


def offsets_of(column: pyarrow.Array) -> Numbers:
    """Return the offsets of a column of lists, bytes or texts, without those before and behind a slice."""
    import numpy as np
    import pyarrow as pa

    types = pa.types
    large = (types.is_large_binary, types.is_large_string, types.is_large_list)
    kind = np.int64 if any(is_it(column.type) for is_it in large) else np.int32
    buffer = column.buffers()[1]
    if buffer is None or not buffer.size:  # Arrow permits that for no rows
        return np.zeros(1, kind)
    return np.frombuffer(buffer, kind, len(column) + 1, column.offset * kind().itemsize)


def nulls(column: pyarrow.Array) -> Numbers | None:
    """Return which rows are NULL; None if there is no such row."""
    import numpy as np

    if not column.null_count:
        return None
    first, skipped = divmod(column.offset, 8)
    bits = np.frombuffer(column.buffers()[0], np.uint8, offset=first)
    missing: Numbers = np.unpackbits(bits, count=skipped + len(column), bitorder="little")[skipped:] == 0
    return missing


def lengths_of(column: pyarrow.Array, of_null: int = -1) -> Numbers:
    """Return the lengths (int32) of a column of lists, bytes or texts; ``of_null`` for NULL."""
    import numpy as np

    lengths: Numbers = np.diff(offsets_of(column)).astype(np.int32, copy=False)
    missing = nulls(column)
    return lengths if missing is None else np.where(missing, np.int32(of_null), lengths)


def integers_of(column: pyarrow.Array) -> Numbers:
    """Return the values (int64) of a column of whole numbers.  What stands for NULL is undefined."""
    import numpy as np
    import pyarrow as pa

    column = column.cast(pa.int64())
    return np.frombuffer(column.buffers()[1], np.int64, len(column), column.offset * 8)


def plain(column: pyarrow.Array) -> pyarrow.Array:
    """Return a column of bytes or texts as type ``binary``, with empty values in place of NULLs."""
    import numpy as np

    offsets, data, missing = offsets_of(column), column.buffers()[2], nulls(column)
    first, last = int(offsets[0]), int(offsets[-1])
    if last - first > LARGEST:
        raise ValueError(f"{last - first} bytes of values at once: Arrow's type for bytes holds {LARGEST}")
    data = data.slice(first, last - first) if data is not None else b""
    offsets = (offsets - first).astype(np.int32, copy=False)
    if missing is not None and np.diff(offsets)[missing].any():
        return _without(missing, offsets, data)
    return binary(offsets, data)


def _without(missing: Numbers, offsets: Numbers, data: Any) -> pyarrow.Array:
    """Return a column whose NULLs are empty, of one whose NULLs have bytes; Arrow permits that."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    valid = np.packbits(~missing, bitorder="little")
    buffers = [pa.py_buffer(valid), pa.py_buffer(offsets), pa.py_buffer(data)]
    column = pa.Array.from_buffers(pa.binary(), len(missing), buffers)
    return pc.fill_null(column, constant(b""))


def joined(*columns: pyarrow.Array | pyarrow.Scalar) -> pyarrow.Array:
    """Return the values of each row as one.  At least one column is no constant, and none has NULLs."""
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(*columns, constant(b""))
