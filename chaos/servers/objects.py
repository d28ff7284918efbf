"""An object store on loopback with the part of S3's protocol that an epoch log needs, and with faults.

It is a stand-in of ours: it lives in this process, keeps its objects in memory, and decides each request under one
lock.  It looks at the access key of a request, not at its signature.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from epochal.chaos.servers.process import LOOPBACK

ANSWER_TIMEOUT_S = 60
ACCESS_KEY = "stand-in"
SECRET_KEY = "s3cr3t-of-the-stand-in"
BUCKET = "lake"
CUT = 0
"""Instead of a status: the connection is closed without an answer."""


@dataclass
class Fault:
    """What happens to the next ``times`` requests with this ``method`` whose key contains ``key``.

    ``lands``: the request has its effect.  ``answer``: the status of the answer, or :data:`CUT`; None: the true answer.
    ``delay``: seconds before the request has its effect.  ``until``: it also waits for this event.  ``landed`` is set
    when the fault is over.
    """

    method: str = "PUT"
    key: str = ""
    lands: bool = True
    answer: int | None = None
    delay: float = 0.0
    until: threading.Event | None = None
    times: int = 1
    landed: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class ObjectServer:
    """An object store with the bucket :data:`BUCKET`.

    ``conditional``: whether ``If-None-Match`` is obeyed.  ``atomic``: whether the look and the write are one step.
    ``listed``: whether a listing shows anything.  ``deletable``: whether the client may delete.  ``page``: how many
    names a page of a listing has.  ``meanwhile`` is called between two pages of a listing.  ``requests``: each method
    and key that was asked for.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.conditional = True
        self.atomic = True
        self.listed = True
        self.deletable = True
        self.page = 1000
        self.meanwhile: Callable[[], object] = lambda: None
        self._faults: list[Fault] = []
        self._lock = threading.RLock()
        self._http: _Http | None = None
        self._port = 0

    @property
    def endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self._port}"

    @property
    def options(self) -> dict[str, str]:
        """What a client needs besides the URL ``s3://lake/...``."""
        return {
            "endpoint": self.endpoint,
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
            "region": "us-east-1",
        }

    @property
    def environment(self) -> dict[str, str]:
        """The same as variables of the environment."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
        }

    def start(self) -> ObjectServer:
        """Listen; after :meth:`stop` on the same port, with the same objects."""
        self._http = _Http((LOOPBACK, self._port), self)
        self._port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def stop(self) -> None:
        """Close the port and all connections."""
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
            self._http.cut_all()
            self._http = None

    def __enter__(self) -> ObjectServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        for fault in self._faults:
            if fault.until is not None:
                fault.until.set()
        self.stop()

    def break_next(self, fault: Fault) -> Fault:
        """Let this fault happen to the next requests that it is for."""
        self._faults.append(fault)
        return fault

    def names(self, prefix: str = "") -> list[str]:
        """Return the names of all objects below ``prefix``."""
        with self._lock:
            return sorted(key.removeprefix(prefix) for key in self.objects if key.startswith(prefix))

    # --- requests -------------------------------------------------------------------------------

    def answer(self, asked: _Request) -> Answer | None:
        """Let the request have its effect; return its answer, or None if the connection is to be cut."""
        with self._lock:
            self.requests.append((asked.method, asked.key))
            fault = self._fault_for(asked)
        if fault is None:
            return self._obey(asked)
        time.sleep(fault.delay)
        if fault.until is not None:
            fault.until.wait(ANSWER_TIMEOUT_S)
        true = self._obey(asked) if fault.lands else None
        fault.landed.set()
        if fault.answer == CUT:
            return None
        return true if fault.answer is None else _refused(fault.answer)

    def _fault_for(self, asked: _Request) -> Fault | None:
        for fault in self._faults:
            if fault.times > 0 and fault.method == asked.method and fault.key in asked.key:
                fault.times -= 1
                return fault
        return None

    def _obey(self, asked: _Request) -> Answer:
        if f"Credential={ACCESS_KEY}/" not in asked.headers.get("authorization", ""):
            return _refused(403, "InvalidAccessKeyId")
        if asked.bucket != BUCKET:
            return _refused(404, "NoSuchBucket")
        if asked.method == "GET" and not asked.key:
            return self._list(asked.query)
        if asked.method == "POST" and "delete" in asked.query:
            return self._delete_all(asked.body)
        if asked.method == "POST" or asked.query.keys() & {"uploadId", "partNumber"}:
            return _refused(400, "MultipartIsNotServedHere")
        return {"PUT": self._put, "GET": self._get, "HEAD": self._get, "DELETE": self._delete}[asked.method](asked)

    def _put(self, asked: _Request) -> Answer:
        only_new = asked.headers.get("if-none-match") == "*" and self.conditional
        if not self.atomic:
            taken = asked.key in self.objects
            time.sleep(0.05)
            if only_new and taken:
                return _refused(412, "PreconditionFailed")
            only_new = False
        with self._lock:
            if only_new and asked.key in self.objects:
                return _refused(412, "PreconditionFailed")
            self.objects[asked.key] = asked.body
            return Answer(200, headers=_tag(asked.body))

    def _get(self, asked: _Request) -> Answer:
        with self._lock:
            body = self.objects.get(asked.key)
        if body is None:
            return _refused(404, "NoSuchKey")
        return Answer(200, body, {**_tag(body), "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"})

    def _delete(self, asked: _Request) -> Answer:
        with self._lock:
            self.objects.pop(asked.key, None)
        return Answer(204)

    def _delete_all(self, body: bytes) -> Answer:
        keys = [each.text or "" for each in ElementTree.fromstring(body).iter() if each.tag.endswith("Key")]
        if not self.deletable:  # S3 answers so with the status 200
            why = "<Code>AccessDenied</Code><Message>Access Denied</Message>"
            kept = "".join(f"<Error><Key>{escape(key)}</Key>{why}</Error>" for key in keys)
            return Answer(200, f"<DeleteResult>{kept}</DeleteResult>".encode())
        with self._lock:
            for key in keys:
                self.requests.append(("DELETE", key))
                self.objects.pop(key, None)
        gone = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        return Answer(200, f"<DeleteResult>{gone}</DeleteResult>".encode())

    def _list(self, query: Mapping[str, str]) -> Answer:
        after = query.get("continuation-token") or query.get("start-after", "")
        if "continuation-token" in query:
            self.meanwhile()
        with self._lock:
            keys = [key for key in self.names() if key.startswith(query.get("prefix", "")) and key > after]
            sizes = {key: len(self.objects[key]) for key in keys}
        keys = keys if self.listed else []
        shown, rest = keys[: self.page], keys[self.page :]
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>&quot;0&quot;</ETag><Size>{sizes[key]}</Size><StorageClass>STANDARD</StorageClass></Contents>"
            for key in shown
        )
        more = f"<NextContinuationToken>{escape(shown[-1])}</NextContinuationToken>" if rest else ""
        return Answer(
            200,
            f"<ListBucketResult><Name>{BUCKET}</Name><KeyCount>{len(shown)}</KeyCount><MaxKeys>{self.page}</MaxKeys>"
            f"<IsTruncated>{str(bool(rest)).lower()}</IsTruncated>{more}{contents}</ListBucketResult>".encode(),
            {"Content-Type": "application/xml"},
        )


@dataclass(frozen=True)
class _Request:
    method: str
    bucket: str
    key: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], store: ObjectServer) -> None:
        self.store = store
        self._connections: set[socket.socket] = set()
        super().__init__(address, _Handler)

    def process_request(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: socket.socket) -> None:  # type: ignore[override]
        self._connections.discard(request)
        super().shutdown_request(request)

    def cut_all(self) -> None:
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no error here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body in one packet
    disable_nagle_algorithm = True
    timeout = ANSWER_TIMEOUT_S
    server: _Http

    def _serve(self) -> None:
        split = urlsplit(self.path)
        _, bucket, *key = unquote(split.path).split("/", 2)
        asked = _Request(
            self.command,
            bucket,
            key[0] if key else "",
            {name: values[0] for name, values in parse_qs(split.query, keep_blank_values=True).items()},
            {name.lower(): value for name, value in self.headers.items()},
            self.rfile.read(int(self.headers.get("Content-Length", 0))),
        )
        answer = self.server.store.answer(asked)
        if answer is None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the store keeps its requests."""


def _refused(status: int, code: str = "Fault") -> Answer:
    if status == 200:
        return Answer(status, headers=_tag(b""))
    body = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
    return Answer(status, body, {"Content-Type": "application/xml"})


def _tag(body: bytes) -> dict[str, str]:
    return {"ETag": f'"{hashlib.sha256(body).hexdigest()[:32]}"'}
