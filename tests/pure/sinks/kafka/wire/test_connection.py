"""One connection, and peers that do not do as brokers do."""

from __future__ import annotations

import socket
import ssl
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin.transactions import DescribeProducersRequest
from kafka.protocol.producer.transaction import EndTxnRequest

from epochal.sinks.kafka.wire import connection as connecting
from epochal.sinks.kafka.wire import messages
from epochal.sinks.kafka.wire.connection import LARGEST_ANSWER, Connection
from epochal.sinks.kafka.wire.errors import AnswerNotUnderstood, BrokerError
from epochal.sinks.kafka.wire.messages import Address, Partition, Piece, Producer
from epochal.sinks.kafka.wire.primitives import array, int32, string
from epochal.sinks.kafka.wire.reach import Reach, Sasl, SocketOptions
from epochal.sinks.kafka.wire.tls import Tls
from tests.pure.sinks.kafka.wire import certificates
from tests.pure.sinks.kafka.wire.peer import Script, answer, closed, correlation, exactly, peer, request

REACH = Reach((), 30, client_id="me")
SECURED = Reach((), 30, client_id="me", tls=Tls(ca_pem=certificates.AUTHORITY))
END = messages.END_TXN
BODY = messages.end_txn("x", Producer(1, 2), commit=True)
DONE = int32(0) + b"\0\0"


def soon(seconds: float = 30) -> float:
    return time.monotonic() + seconds


def connect(to: Address, reach: Reach = REACH) -> Connection:
    return Connection(to.host, to.port, reach)


def end(connection: Connection, seconds: float = 30) -> int:
    return messages.read_end_txn(connection.call(END.api, END.version, BODY, deadline=soon(seconds)))


@pytest.fixture
def server_context(tmp_path: Path) -> ssl.SSLContext:
    file = tmp_path / "broker.pem"
    file.write_text(certificates.BROKER + certificates.BROKER_KEY)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context


def test_a_request_has_the_head_that_kafka_python_gives_it() -> None:
    sent: list[bytes] = []

    def script(accepted: socket.socket) -> None:
        sent.append(request(accepted))
        answer(accepted, sent[0], DONE)
        sent.append(request(accepted))
        # An answer of a flexible version: the head has tagged fields, which are skipped.
        answer(accepted, sent[1], b"\x01\x05\x02ab" + int32(0) + b"\x01\x00")

    with peer(script) as at:
        opened = connect(at)
        assert end(opened) == 0
        of = messages.DESCRIBE_PRODUCERS
        body = messages.describe_producers([Partition("t", 3)])
        told = opened.call(of.api, of.version, body, flexible=of.flexible, deadline=soon())
        assert messages.read_describe_producers(told) == []
        opened.close()
    ended: Any = EndTxnRequest(transactional_id="x", producer_id=1, producer_epoch=2, committed=True, version=2)
    topic = DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[3])
    asked: Any = DescribeProducersRequest(topics=[topic], version=0)
    for number, known in ((1, ended), (2, asked)):
        known.with_header(correlation_id=number, client_id="me")
    assert sent == [bytes(known.encode(framed=True, header=True)) for known in (ended, asked)]


def test_answers_are_read_in_order() -> None:
    def script(accepted: socket.socket) -> None:
        for framed in [request(accepted) for _ in range(3)]:
            answer(accepted, framed, int32(0) + correlation(framed)[2:])

    with peer(script) as at:
        opened = connect(at)
        for _ in range(3):
            opened.send(END.api, END.version, BODY)
        assert opened.in_flight == 3
        with pytest.raises(RuntimeError, match="3 answers of 127"):
            end(opened)
        assert [messages.read_end_txn(opened.receive(soon())) for _ in range(3)] == [1, 2, 3]
        assert opened.in_flight == 0
        with pytest.raises(RuntimeError, match="no answer"):
            opened.receive(soon())
        opened.close()
        opened.close()


def lie(head: bytes) -> Script:
    def script(accepted: socket.socket) -> None:
        framed = request(accepted)
        accepted.sendall(head.replace(b"CORR", correlation(framed)))
        closed(accepted)

    return script


@pytest.mark.parametrize(
    ("head", "told"),
    [
        (int32(10) + int32(77) + DONE, "the answer is to request 77, and 1 was sent"),
        (int32(-1), "an answer claims -1 bytes"),
        (int32(3), "an answer claims 3 bytes"),
        (int32(LARGEST_ANSWER + 1), f"an answer claims {LARGEST_ANSWER + 1} bytes"),
        (int32(2**31 - 1), "an answer claims 2147483647 bytes"),
    ],
)
def test_a_connection_is_not_used_after_an_answer_that_makes_no_sense(head: bytes, told: str) -> None:
    with peer(lie(head)) as at:
        opened = connect(at)
        with pytest.raises(AnswerNotUnderstood, match=told) as refused:
            end(opened)
        assert (refused.value.api, refused.value.version) == (END.api, END.version)
        assert not opened.is_open
        for use in (lambda: end(opened), lambda: opened.send(END.api, END.version, BODY)):
            with pytest.raises(ConnectionError, match="was closed"):
                use()


def drip(accepted: socket.socket) -> None:
    framed = request(accepted)
    for byte in int32(10_000) + correlation(framed) + b"\0" * 100:
        try:
            accepted.sendall(bytes([byte]))
        except OSError:
            return
        time.sleep(0.02)


@pytest.mark.parametrize("script", [closed, drip], ids=["silent", "a byte at a time"])
def test_a_wait_for_an_answer_ends_at_its_deadline(script: Script) -> None:
    with peer(script) as at:
        opened = connect(at)
        started = time.monotonic()
        with pytest.raises(TimeoutError, match=f"127.0.0.1:{at.port} did not answer in time"):
            end(opened, 0.3)
        assert time.monotonic() - started < 5
        assert not opened.is_open


@pytest.mark.parametrize("secured", [False, True])
def test_a_wait_to_send_ends_at_its_deadline(secured: bool, server_context: ssl.SSLContext) -> None:
    def script(accepted: socket.socket) -> None:
        exactly(accepted, 1)
        until.wait(30)

    until = threading.Event()
    with peer(script, context=server_context if secured else None) as at:
        opened = connect(at, SECURED if secured else REACH)
        with pytest.raises(TimeoutError):
            opened.send(END.api, END.version, bytes(64 << 20), deadline=soon(0.5))
        assert not opened.is_open
        until.set()


@pytest.mark.parametrize("head", [b"", b"\0\0", int32(10) + b"CORR\0"])
def test_a_peer_that_closes_is_an_error_of_the_connection(head: bytes) -> None:
    def script(accepted: socket.socket) -> None:
        framed = request(accepted)
        accepted.sendall(head.replace(b"CORR", correlation(framed)))

    with peer(script) as at, pytest.raises(ConnectionError, match=f"127.0.0.1:{at.port} closed"):
        end(connect(at))


@pytest.mark.parametrize("secured", [False, True])
def test_many_pieces_arrive_in_order_and_are_not_copied(secured: bool, server_context: ssl.SSLContext) -> None:
    large = bytes(range(256)) * (1 << 17)  # 32 MiB
    small = [bytes([number % 256]) * (number % 90) for number in range(1500)]
    parts: list[Piece] = [*small, memoryview(large)[7:], bytearray(b"end"), memoryview(bytearray(16)).cast("i")]
    arrived: list[bytes] = []

    def script(accepted: socket.socket) -> None:
        arrived.append(request(accepted))
        answer(accepted, arrived[0], DONE)

    with peer(script, context=server_context if secured else None) as at:
        opened = connect(at, SECURED if secured else REACH)
        reader = opened.call(END.api, END.version, *parts, deadline=soon())
        assert messages.read_end_txn(reader) == 0
        opened.close()
    assert arrived[0].endswith(b"".join([*small, large[7:], b"end", bytes(16)]))


@pytest.mark.parametrize("secured", [False, True])
def test_a_large_piece_costs_no_memory(secured: bool, server_context: ssl.SSLContext) -> None:
    def script(accepted: socket.socket) -> None:
        left = int.from_bytes(exactly(accepted, 4), "big") - 8
        head, buffer = exactly(accepted, 8), bytearray(1 << 16)
        while left:
            read = accepted.recv_into(buffer, min(left, len(buffer)))
            assert read
            left -= read
        answer(accepted, int32(0) + head, DONE)

    large = bytes(32 << 20)
    with peer(script, context=server_context if secured else None) as at:
        opened = connect(at, SECURED if secured else REACH)
        tracemalloc.start()
        opened.send(END.api, END.version, b"head", large, b"next", large)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert messages.read_end_txn(opened.receive(soon())) == 0
        opened.close()
    assert most < 4 << 20


def test_a_broker_that_asks_for_a_pause_gets_it() -> None:
    def script(accepted: socket.socket) -> None:
        answer(accepted, request(accepted), int32(300) + b"\0\0")
        answer(accepted, request(accepted), int32(60_000) + b"\0\0")
        closed(accepted)

    with peer(script) as at:
        opened = connect(at)
        started = time.monotonic()
        end(opened)
        end(opened)
        assert 0.3 <= time.monotonic() - started < 20
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            end(opened, 0.2)
        assert time.monotonic() - started < 20


# --- to be reached -----------------------------------------------------------------------------------------


def test_nobody_there_is_an_error_that_names_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectionRefusedError, match=f"127.0.0.1:{port} could not be reached"):
        connect(Address("127.0.0.1", port))


@pytest.mark.parametrize(
    "address",
    [Address("a..b", 1), Address("x\0y", 1), Address("x" * 300, 1), Address("127.0.0.1", 0), Address("::", 70_000)],
)
def test_an_address_that_a_broker_makes_up_is_an_error_of_the_connection(address: Address) -> None:
    with pytest.raises(OSError):  # noqa: PT011 -- its text is the system's
        connect(address)


def test_all_addresses_of_a_name_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nobody = listener.getsockname()
    with peer(closed) as at:
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", tuple(where)) for where in (nobody, at)]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found)
        connect(Address("two.example", 9092)).close()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found[:1])
    with pytest.raises(ConnectionRefusedError, match=r"two\.example:9092 could not be reached"):
        connect(Address("two.example", 9092))

    def unknown(*_: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(OSError, match=r"'two\.example': Name or service not known"):
        connect(Address("two.example", 9092))


def test_an_address_that_swallows_packets_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    class Swallowing(socket.socket):
        def connect(self, _where: Any) -> None:
            given.append(self.gettimeout() or 0)
            raise TimeoutError

    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 1))] * 4
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found)
    monkeypatch.setattr(socket, "socket", Swallowing)
    with pytest.raises(TimeoutError, match="could not be reached in time"):
        connecting.connect(Address("x", 1), SocketOptions(), soon(12))
    assert [round(seconds) for seconds in given] == [3, 4, 6, 12]


def test_sockets_are_made_as_options_say() -> None:
    options = SocketOptions(family="v4", keepalive=True, nodelay=False, send_buffer=70_000, receive_buffer=90_000)
    with peer(closed, closed) as at:
        asked = {
            made: [made.getsockopt(socket.SOL_SOCKET, name) for name in (socket.SO_KEEPALIVE, socket.SO_SNDBUF)]
            + [made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)]
            for made in (connecting.connect(at, each, soon()) for each in (SocketOptions(), options))
        }
        for made in asked:
            made.close()
    (_, _, nodelay), (keepalive, buffer, nagle) = asked.values()
    assert (bool(nodelay), bool(keepalive), bool(nagle)) == (True, True, False)
    assert buffer >= 70_000


# --- to be let in ------------------------------------------------------------------------------------------

LOGIN = Reach((), 30, client_id="me", sasl=Sasl("PLAIN", "user", "open-Sesame-42"))


def test_a_mechanism_that_is_not_spoken_is_named_with_those_that_are() -> None:
    def script(accepted: socket.socket) -> None:
        answer(accepted, request(accepted), b"\0\x21" + array([string("GSSAPI"), string("SCRAM-SHA-512")]))
        closed(accepted)

    with peer(script) as at, pytest.raises(BrokerError, match=r"UNSUPPORTED_SASL_MECHANISM.*GSSAPI, SCRAM-SHA-512"):
        connect(at, LOGIN)


def test_a_user_who_is_not_let_in_learns_why_and_shows_no_password() -> None:
    def script(accepted: socket.socket) -> None:
        answer(accepted, request(accepted), b"\0\0" + array([string("PLAIN")]))
        framed = request(accepted)
        assert framed.endswith(int32(20) + b"\0user\0open-Sesame-42")
        answer(accepted, framed, b"\0\x3a" + string("no such user") + int32(0) + bytes(8))
        closed(accepted)

    with peer(script) as at, pytest.raises(BrokerError, match="does not let us in: no such user") as refused:
        connect(at, LOGIN)
    assert refused.value.name == "SASL_AUTHENTICATION_FAILED"
    assert "Sesame" not in str(refused.value)


@pytest.mark.parametrize("reach", [LOGIN, SECURED], ids=["sasl", "tls"])
def test_a_peer_that_stays_silent_is_given_up_after_the_time_of_a_connection(reach: Reach) -> None:
    started: float = time.monotonic()
    with peer(closed, closed) as at:
        with pytest.raises(TimeoutError):
            Connection(at.host, at.port, reach, deadline=soon(0.3))
        quick = Reach((), 30, tls=reach.tls, sasl=reach.sasl, socket=SocketOptions(setup_s=0.3))
        with pytest.raises(TimeoutError):
            connect(at, quick)
    assert time.monotonic() - started < 20


# --- TLS ---------------------------------------------------------------------------------------------------


def serve_one(accepted: socket.socket) -> None:
    answer(accepted, request(accepted), DONE)
    closed(accepted)


def reached(tls: Tls, context: ssl.SSLContext, host: str = "127.0.0.1") -> int:
    with peer(serve_one, context=context) as at:
        opened = Connection(host, at.port, Reach((), 30, tls=tls))
        try:
            return end(opened)
        finally:
            opened.close()


def written(folder: Path, text: str, name: str = "given.pem") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


@pytest.fixture
def trusting(tmp_path: Path) -> Callable[[str], Tls]:
    """The authority of the broker, given in each way that there is."""
    (tmp_path / "folder").mkdir()
    written(tmp_path / "folder", certificates.AUTHORITY, f"{certificates.AUTHORITY_HASH}.0")
    ways = {
        "file": Tls(ca_location=written(tmp_path, certificates.AUTHORITY)),
        "folder": Tls(ca_location=str(tmp_path / "folder")),
        "pem": Tls(ca_pem=certificates.AUTHORITY),
    }
    return ways.__getitem__


@pytest.mark.parametrize("way", ["file", "folder", "pem"])
def test_a_broker_whose_authority_is_given_is_trusted(
    way: str, trusting: Callable[[str], Tls], server_context: ssl.SSLContext
) -> None:
    assert reached(trusting(way), server_context) == 0
    assert reached(trusting(way), server_context, "localhost") == 0


UNTRUSTED = {
    "an unknown authority": (Tls(), "127.0.0.1"),
    "an unknown authority, where libraries look": (Tls(ca_location="probe"), "127.0.0.1"),
    "another name": (Tls(ca_pem=certificates.AUTHORITY), "127.1"),
}


@pytest.mark.parametrize("why", UNTRUSTED)
def test_a_broker_that_cannot_be_known_is_not_trusted(why: str, server_context: ssl.SSLContext) -> None:
    tls, host = UNTRUSTED[why]
    with pytest.raises(ssl.SSLCertVerificationError):
        reached(tls, server_context, host)


@pytest.mark.parametrize(
    ("tls", "host"),
    [
        (Tls(ca_pem=certificates.AUTHORITY, identifies=False), "127.1"),
        (Tls(verifies=False), "127.1"),
        (Tls(verifies=False, identifies=False), "127.0.0.1"),
    ],
)
def test_a_check_that_is_switched_off_is_not_made(tls: Tls, host: str, server_context: ssl.SSLContext) -> None:
    assert reached(tls, server_context, host) == 0
    with pytest.raises(ssl.SSLCertVerificationError):
        reached(Tls(identifies=False), server_context)


def test_a_certificate_that_was_revoked_is_not_trusted(tmp_path: Path, server_context: ssl.SSLContext) -> None:
    authority = certificates.AUTHORITY
    assert (
        reached(Tls(ca_pem=authority, crl_location=written(tmp_path, certificates.NONE_REVOKED)), server_context) == 0
    )
    revoked = Tls(ca_pem=authority, crl_location=written(tmp_path, certificates.BROKER_REVOKED))
    with pytest.raises(ssl.SSLCertVerificationError, match="revoked"):
        reached(revoked, server_context)


def test_a_client_shows_its_certificate(tmp_path: Path, server_context: ssl.SSLContext) -> None:
    server_context.verify_mode = ssl.CERT_REQUIRED
    server_context.load_verify_locations(cadata=certificates.AUTHORITY)
    certificate, key = written(tmp_path, certificates.CLIENT, "c.pem"), written(tmp_path, certificates.CLIENT_KEY, "k")
    both = written(tmp_path, certificates.CLIENT + certificates.CLIENT_KEY, "both.pem")
    locked, password = certificates.CLIENT_KEY_LOCKED, certificates.CLIENT_PASSWORD
    ways: tuple[dict[str, Any], ...] = (
        {"certificate_location": certificate, "key_location": key},
        {"certificate_location": certificate, "key_pem": certificates.CLIENT_KEY},
        {"certificate_pem": certificates.CLIENT, "key_location": key},
        {"certificate_pem": certificates.CLIENT, "key_pem": locked, "key_password": password},
        {"certificate_location": both},
    )
    for given in ways:
        assert reached(Tls(ca_pem=certificates.AUTHORITY, **given), server_context) == 0
    with pytest.raises(OSError):  # noqa: PT011 -- the broker says it, or hangs up
        reached(Tls(ca_pem=certificates.AUTHORITY), server_context)


def test_a_key_lies_in_a_file_of_ours_only_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    modes: list[int] = []
    load = ssl.SSLContext.load_cert_chain

    def watched(self: ssl.SSLContext, certificate: str, key: str, password: str) -> None:
        modes.extend(Path(name).stat().st_mode & 0o777 for name in (certificate, key))
        load(self, certificate, key, password)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", watched)
    key: dict[str, Any] = {"key_pem": certificates.CLIENT_KEY_LOCKED, "key_password": certificates.CLIENT_PASSWORD}
    Tls(certificate_pem=certificates.CLIENT, **key).context()
    wrongs: list[dict[str, Any]] = [{**key, "key_password": "open-Sesame-42"}, {"key_pem": "no key"}]
    for wrong in (*wrongs, {"key_pem": key["key_pem"]}):
        with pytest.raises(OSError, match=r"ssl\.certificate and ssl\.key cannot be used") as refused:
            Tls(certificate_pem=certificates.CLIENT, **wrong).context()
        assert "Sesame" not in str(refused.value)
        assert refused.value.__cause__ is None
    assert modes == [0o600] * 8
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("tls", "option"),
    [
        (Tls(ca_location="no/such/file"), r"ssl\.ca\.location=no/such/file"),
        (Tls(ca_pem="no certificate"), r"ssl\.ca\.pem"),
        (Tls(ca_pem="nö"), r"ssl\.ca\.pem"),
        (Tls(crl_location="no/such/file"), r"ssl\.crl\.location=no/such/file"),
        (Tls(ciphers="no such cipher"), r"ssl\.cipher\.suites"),
        (Tls(certificate_location="no/such/file"), r"ssl\.certificate and ssl\.key"),
    ],
)
def test_what_cannot_be_used_is_named_by_its_option(tls: Tls, option: str) -> None:
    with pytest.raises(OSError, match=f"{option} cannot be used"):
        tls.context()


def test_ciphers_are_those_that_are_given() -> None:
    context = Tls(ciphers="ECDHE-RSA-AES256-GCM-SHA384").context()
    chosen = {each["name"] for each in context.get_ciphers() if each["protocol"] != "TLSv1.3"}
    assert chosen == {"ECDHE-RSA-AES256-GCM-SHA384"}
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
