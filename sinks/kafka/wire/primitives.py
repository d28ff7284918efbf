"""Numbers, texts and arrays as Kafka's protocol writes them.

*Compact* forms, whose lengths are unsigned varints plus one, belong to *flexible* versions; those also end each
structure with tagged fields, of which our requests have none.

Source: https://kafka.apache.org/protocol (Protocol Primitive Types), KIP-482.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import TypeVar

from epochal.sinks.kafka.wire.errors import AnswerNotUnderstood

T = TypeVar("T")

NO_TAGS = b"\x00"
NULL = b"\xff\xff"
_VARINT_BYTES = 5


def int8(value: int) -> bytes:
    return struct.pack(">b", value)


def int16(value: int) -> bytes:
    return struct.pack(">h", value)


def int32(value: int) -> bytes:
    return struct.pack(">i", value)


def int64(value: int) -> bytes:
    return struct.pack(">q", value)


def boolean(value: bool) -> bytes:
    return b"\x01" if value else b"\x00"


def varint(value: int) -> bytes:
    """Return an unsigned varint: seven bits a byte, the lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def string(value: str | None) -> bytes:
    """Return a text or null, in a form that is not compact."""
    if value is None:
        return NULL
    data = value.encode()
    return int16(len(data)) + data


def compact_string(value: str) -> bytes:
    data = value.encode()
    return varint(len(data) + 1) + data


def octets(value: bytes) -> bytes:
    """Return bytes with their length before them."""
    return int32(len(value)) + value


def array(items: Iterable[bytes]) -> bytes:
    """Return an array of encoded items."""
    listed = list(items)
    return int32(len(listed)) + b"".join(listed)


def compact_array(items: Iterable[bytes]) -> bytes:
    listed = list(items)
    return varint(len(listed) + 1) + b"".join(listed)


class Reader:
    """Reads an answer from its front to its end.

    Every length is compared with the bytes that are left before anything is read or repeated, so no answer makes a
    reader run long or allocate much.  Whatever does not fit is ``AnswerNotUnderstood``.

    ``throttled`` is called with the milliseconds that the broker asks this client to wait.
    """

    def __init__(
        self,
        data: bytes | bytearray,
        api: int = -1,
        version: int = -1,
        throttled: Callable[[int], None] | None = None,
    ) -> None:
        self._data = data
        self._at = 0
        self._api = api
        self._version = version
        self._throttled = throttled

    @property
    def left(self) -> int:
        """How many bytes have not been read."""
        return len(self._data) - self._at

    def refusal(self, what: str) -> AnswerNotUnderstood:
        """Return the error that says what is wrong with this answer."""
        return AnswerNotUnderstood(what, bytes(self._data[: AnswerNotUnderstood.SHOWN]), self._api, self._version)

    def end(self) -> None:
        """Check that nothing is left."""
        if self.left:
            raise self.refusal(f"{self.left} bytes follow the end of the answer")

    def int8(self) -> int:
        return int.from_bytes(self._take(1), "big", signed=True)

    def int16(self) -> int:
        return int.from_bytes(self._take(2), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self._take(4), "big", signed=True)

    def int64(self) -> int:
        return int.from_bytes(self._take(8), "big", signed=True)

    def varint(self) -> int:
        """Read an unsigned varint of at most 32 bits."""
        value = 0
        for place in range(_VARINT_BYTES):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                if value >= 1 << 32:
                    break
                return value
        raise self.refusal("a varint has more than 32 bits")

    def throttle(self) -> int:
        """Read how many milliseconds this client has to wait, and report it."""
        milliseconds = self.int32()
        if self._throttled is not None and milliseconds > 0:
            self._throttled(milliseconds)
        return milliseconds

    def nullable_string(self) -> str | None:
        return self._text(self.int16())

    def string(self) -> str:
        return self._not_null(self.nullable_string())

    def nullable_compact_string(self) -> str | None:
        return self._text(self.varint() - 1)

    def compact_string(self) -> str:
        return self._not_null(self.nullable_compact_string())

    def octets(self) -> bytes:
        length = self.int32()
        if length < 0:
            raise self.refusal(f"bytes have the length {length}")
        return self._take(length)

    def array(self, item: Callable[[], T]) -> list[T]:
        """Read an array; ``item`` reads one item, which takes at least one byte."""
        return self._many(self.int32(), item)

    def compact_array(self, item: Callable[[], T]) -> list[T]:
        return self._many(self.varint() - 1, item)

    def skip_tags(self) -> None:
        """Skip tagged fields.  Our versions define none; brokers may add some at any time."""
        for _ in range(self.varint()):
            self.varint()
            self._take(self.varint())

    def _take(self, length: int) -> bytes:
        if length > self.left:
            raise self.refusal(f"the answer ends {length - self.left} bytes too early, at byte {len(self._data)}")
        taken = bytes(self._data[self._at : self._at + length])
        self._at += length
        return taken

    def _text(self, length: int) -> str | None:
        if length == -1:
            return None
        if length < 0:
            raise self.refusal(f"a text has the length {length}")
        try:
            return self._take(length).decode()
        except UnicodeDecodeError:
            raise self.refusal("a text is not UTF-8") from None

    def _not_null(self, text: str | None) -> str:
        if text is None:
            raise self.refusal("a text is null")
        return text

    def _many(self, count: int, item: Callable[[], T]) -> list[T]:
        if not 0 <= count <= self.left:
            raise self.refusal(f"an array claims {count} items in {self.left} bytes")
        return [item() for _ in range(count)]
