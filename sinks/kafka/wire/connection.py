"""One connection to one broker: a blocking socket, requests and their answers in order.

A connection is used by one thread.  Every wait ends at a deadline, a value of ``time.monotonic``.  After anything went
wrong, also after a deadline, the connection is closed and stays so: what a broker still sends would be read as the
answer to another request.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from epochal.sinks.kafka.wire import messages, sasl
from epochal.sinks.kafka.wire.errors import AnswerNotUnderstood, BrokerError
from epochal.sinks.kafka.wire.messages import Address, Piece
from epochal.sinks.kafka.wire.primitives import NO_TAGS, Reader, string
from epochal.sinks.kafka.wire.reach import Reach, SocketOptions

LARGEST_ANSWER = 100_000_000
"""Bytes.  The largest answers are those about thousands of partitions; each takes some dozens of bytes."""

_HEAD = 4  # bytes of the length before each answer
_PIECES_AT_ONCE = 512  # fewer than any system's limit for one sendmsg
_TLS_SLICE = 1 << 18
_TLS_JOINED = 1 << 14  # one record of TLS
_FAMILIES = {"any": socket.AF_UNSPEC, "v4": socket.AF_INET, "v6": socket.AF_INET6}


class _Waiting(NamedTuple):
    """A request whose answer has not been read."""

    correlation: int
    api: int
    version: int
    flexible: bool


class Connection:
    """A connection that is open and knows who we are."""

    def __init__(
        self,
        host: str,
        port: int,
        reach: Reach,
        *,
        deadline: float | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """Connect.

        ``context`` is that of ``reach.tls``, if it was made before.  Raise ``OSError`` if the broker is not reached in
        time or not trusted, and ``BrokerError`` if it does not let us in.
        """
        self.address = Address(host, port)
        self._reach = reach
        self._client = string(reach.client_id)
        self._correlation = 0
        self._waiting: deque[_Waiting] = deque()
        self._rests_until = 0.0
        until = time.monotonic() + reach.socket.setup_s
        until = until if deadline is None else min(until, deadline)
        if reach.tls is not None and context is None:
            context = reach.tls.context()
        self._socket: socket.socket | None = connect(self.address, reach.socket, until)
        with self._closed_on_error() as opened:
            if context is not None:
                _limit(opened, until)
                self._socket = context.wrap_socket(opened, server_hostname=host)
            self._log_in(until)

    @property
    def in_flight(self) -> int:
        """How many requests were sent whose answers have not been read."""
        return len(self._waiting)

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    def close(self) -> None:
        """Close the connection.  It can be closed twice."""
        opened, self._socket = self._socket, None
        self._waiting.clear()
        if opened is not None:
            opened.close()

    def call(self, api: int, version: int, *parts: Piece, flexible: bool = False, deadline: float) -> Reader:
        """Send a request and return its answer.  No other answer may be due."""
        if self._waiting:
            raise RuntimeError(f"{len(self._waiting)} answers of {self.address} have not been read")
        self.send(api, version, *parts, flexible=flexible, deadline=deadline)
        return self.receive(deadline)

    def send(
        self, api: int, version: int, *parts: Piece, flexible: bool = False, deadline: float | None = None
    ) -> None:
        """Send a request whose body is these parts, which are not copied.

        Without a deadline, the time of one request is the limit.  A broker that has asked for a pause gets it first.
        """
        until = time.monotonic() + self._reach.timeout if deadline is None else deadline
        self._rest(until)
        self._correlation = (self._correlation + 1) & 0x7FFFFFFF
        head = struct.pack(">hhi", api, version, self._correlation) + self._client + (NO_TAGS if flexible else b"")
        views = [memoryview(part).cast("B") for part in parts]
        length = len(head) + sum(view.nbytes for view in views)
        with self._closed_on_error() as opened:
            pieces = [memoryview(struct.pack(">i", length) + head), *views]
            if isinstance(opened, ssl.SSLSocket):
                _send_encrypted(opened, pieces, until)
            else:
                _send_plain(opened, pieces, until)
        self._waiting.append(_Waiting(self._correlation, api, version, flexible))

    def receive(self, deadline: float) -> Reader:
        """Return the answer to the oldest request that waits for one."""
        if self.is_open and not self._waiting:
            raise RuntimeError(f"no answer of {self.address} is due")
        with self._closed_on_error() as opened:
            asked = self._waiting[0]
            length = int.from_bytes(self._exactly(opened, _HEAD, deadline), "big", signed=True)
            if not _HEAD <= length <= LARGEST_ANSWER:
                raise AnswerNotUnderstood(f"an answer claims {length} bytes", b"", asked.api, asked.version)
            answer = self._exactly(opened, length, deadline)
            reader = Reader(answer, asked.api, asked.version, self._throttle)
            correlation = reader.int32()
            if correlation != asked.correlation:
                raise reader.refusal(f"the answer is to request {correlation}, and {asked.correlation} was sent")
            if asked.flexible:
                reader.skip_tags()
        self._waiting.popleft()
        return reader

    @contextmanager
    def _closed_on_error(self) -> Iterator[socket.socket]:
        if self._socket is None:
            raise ConnectionError(f"the connection to {self.address} was closed")
        try:
            yield self._socket
        except TimeoutError:
            self.close()
            raise TimeoutError(f"{self.address} did not answer in time") from None
        except BaseException:
            self.close()
            raise

    def _exactly(self, opened: socket.socket, length: int, deadline: float) -> bytearray:
        data = bytearray(length)
        view, read = memoryview(data), 0
        while read < length:
            _limit(opened, deadline)
            count = opened.recv_into(view[read:])
            if not count:
                raise ConnectionError(f"{self.address} closed the connection")
            read += count
        return data

    def _throttle(self, milliseconds: int) -> None:
        self._rests_until = max(self._rests_until, time.monotonic() + milliseconds / 1000)

    def _rest(self, deadline: float) -> None:
        now = time.monotonic()
        if self._rests_until > now:
            time.sleep(max(0.0, min(self._rests_until, deadline) - now))

    def _log_in(self, deadline: float) -> None:
        who = self._reach.sasl
        if who is None:
            return
        request = messages.SASL_HANDSHAKE
        spoken = messages.read_sasl_handshake(
            self.call(request.api, request.version, messages.sasl_handshake(who.mechanism), deadline=deadline)
        )
        if spoken.error:
            known = ", ".join(spoken.mechanisms)
            raise BrokerError(spoken.error, f"{self.address} does not speak {who.mechanism}, only {known}")
        sasl.run(sasl.exchange(who), lambda message: self._authenticate(message, deadline))

    def _authenticate(self, message: bytes, deadline: float) -> bytes:
        request = messages.SASL_AUTHENTICATE
        answer = messages.read_sasl_authenticate(
            self.call(request.api, request.version, messages.sasl_authenticate(message), deadline=deadline)
        )
        if answer.error:
            raise BrokerError(answer.error, f"{self.address} does not let us in: {answer.message}")
        return answer.data


def connect(address: Address, options: SocketOptions, deadline: float) -> socket.socket:
    """Return a socket that is connected to one of the addresses that the host's name has.

    Each address gets an equal share of the time that is left, so that one that swallows packets does not use up all.
    """
    found = _resolve(address, options.family)
    failure: OSError = ConnectionError(f"{address.host} has no address")
    for tried, (family, kind, protocol, _name, where) in enumerate(found):
        made = socket.socket(family, kind, protocol)
        try:
            _configure(made, options)
            left = deadline - time.monotonic()
            _limit(made, deadline - left * (1 - 1 / (len(found) - tried)))
            made.connect(where)
        except TimeoutError:
            made.close()
            failure = TimeoutError(f"{address} could not be reached in time")
        except OSError as error:
            made.close()
            failure = type(error)(error.errno, f"{address} could not be reached: {error.strerror or error}")
        except BaseException:
            made.close()
            raise
        else:
            return made
    raise failure


def _resolve(address: Address, family: str) -> list[tuple[int, int, int, str, tuple[object, ...]]]:
    """Return what ``getaddrinfo`` knows of an address.  It may come from a broker, so it may be any text and number."""
    if not 0 < address.port < 65536:
        raise ConnectionError(f"{address} has no port that TCP knows")
    kind, protocol = socket.SOCK_STREAM, socket.IPPROTO_TCP
    try:
        return list(socket.getaddrinfo(address.host, address.port, _FAMILIES[family], kind, protocol))
    except socket.gaierror as error:
        raise socket.gaierror(error.errno, f"{address.host!r}: {error.strerror}") from None
    except ValueError as error:
        raise ConnectionError(f"{address.host!r} is not a name of a host: {error}") from None


def _configure(made: socket.socket, options: SocketOptions) -> None:
    # Buffers come first: the window of a connection is agreed on while it is made.
    if options.send_buffer:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, options.send_buffer)
    if options.receive_buffer:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options.receive_buffer)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, int(options.nodelay))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, int(options.keepalive))


def _limit(opened: socket.socket, deadline: float) -> None:
    """Let the next wait of this socket end at the deadline."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    opened.settimeout(left)


def _send_plain(opened: socket.socket, pieces: Sequence[memoryview], deadline: float) -> None:
    """Send from many places at once, without a copy."""
    waiting = deque(piece for piece in pieces if piece.nbytes)
    while waiting:
        _limit(opened, deadline)
        at_once = [waiting.popleft() for _ in range(min(len(waiting), _PIECES_AT_ONCE))]
        sent = opened.sendmsg(at_once)
        for piece in reversed(_unsent(at_once, sent)):
            waiting.appendleft(piece)


def _unsent(pieces: Sequence[memoryview], sent: int) -> list[memoryview]:
    """Return what is left of these pieces after this many bytes."""
    left = []
    for piece in pieces:
        if sent < piece.nbytes:
            left.append(piece[sent:])
        sent = max(0, sent - piece.nbytes)
    return left


def _send_encrypted(opened: ssl.SSLSocket, pieces: Sequence[memoryview], deadline: float) -> None:
    for piece in _records(pieces):
        sent = 0
        while sent < piece.nbytes:
            _limit(opened, deadline)
            sent += opened.send(piece[sent : sent + _TLS_SLICE])


def _records(pieces: Sequence[memoryview]) -> Iterator[memoryview]:
    """Join small pieces, so that the head of a batch is no record of its own.  Larger pieces stay where they are."""
    joined = bytearray()
    for piece in pieces:
        if piece.nbytes + len(joined) <= _TLS_JOINED:
            joined += piece
            continue
        if joined:
            yield memoryview(joined)
            joined = bytearray()
        yield piece
    if joined:
        yield memoryview(joined)
