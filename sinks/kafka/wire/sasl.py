"""SASL exchanges: pure, bytes in and bytes out.

An exchange is a generator.  It yields what is sent to the broker, receives what the broker answers, and returns when
the broker has proved what it has to prove.  When the broker refuses a message, its error is thrown into the exchange,
which may add what it knows.  No message of an error shows a password, a token or a proof.

Sources: RFC 4616 (PLAIN), RFC 5802 and RFC 7677 (SCRAM), RFC 7628 and KIP-255 (OAUTHBEARER).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
from collections.abc import Callable, Generator, Mapping
from typing import Any

from epochal.sinks.kafka.wire.errors import SASL_AUTHENTICATION_FAILED, BrokerError
from epochal.sinks.kafka.wire.reach import Sasl

Exchange = Generator[bytes, bytes, None]

FEWEST_ITERATIONS = 4096
MOST_ITERATIONS = 1_000_000
"""Half a second or so of one core.  Kafka's brokers ask for 4,096 to 16,384."""

_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_GS2 = b"n,,"
_EXTENSION = re.compile(r"[A-Za-z]+")
_VALUE = re.compile(r"[\x21-\x7E \t\r\n]*")
_SHOWN = 500


def exchange(who: Sasl) -> Exchange:
    """Return the exchange that says who we are."""
    if who.mechanism == "OAUTHBEARER":
        if who.oauth_cb is None:
            raise _refused("OAUTHBEARER needs oauth_cb")
        token, extensions = token_of(who.oauth_cb)
        return oauthbearer(token, extensions)
    if who.username is None or who.password is None:
        raise _refused(f"{who.mechanism} needs a user and a password")
    if who.mechanism == "PLAIN":
        return plain(who.username, who.password)
    return scram(who.mechanism, who.username, who.password)


def run(of: Exchange, ask: Callable[[bytes], bytes]) -> None:
    """Run an exchange.  ``ask`` sends a message and returns the answer, or raises ``BrokerError``."""
    message = next(of)
    while True:
        try:
            answer = ask(message)
        except BrokerError as error:
            of.throw(error)
            raise
        try:
            message = of.send(answer)
        except StopIteration:
            return


def plain(username: str, password: str) -> Exchange:
    """Send user and password as they are: only TLS keeps them from others."""
    if "\0" in username or "\0" in password:
        raise _refused("a user or a password of PLAIN has no zero byte")
    yield b"\0".join((b"", username.encode(), password.encode()))


def scram(mechanism: str, username: str, password: str, nonce: bytes | None = None) -> Exchange:
    """Prove that we know the password, and have the broker prove that it knows it, too.

    ``nonce`` is a random text that nobody used before; it is given by tests alone.
    """
    digest = _HASHES[mechanism]
    nonce = nonce or base64.b64encode(os.urandom(24))
    user = username.replace("=", "=3D").replace(",", "=2C").encode()
    first = b"n=" + user + b",r=" + nonce
    challenge = yield _GS2 + first

    theirs, salt, iterations = _challenge(challenge, nonce)
    final = b"c=" + base64.b64encode(_GS2) + b",r=" + theirs
    signed = first + b"," + challenge + b"," + final
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations)
    key = _mac(salted, b"Client Key", digest)
    signature = _mac(hashlib.new(digest, key).digest(), signed, digest)
    proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    outcome = yield final + b",p=" + base64.b64encode(proof)

    _check(outcome, _mac(_mac(salted, b"Server Key", digest), signed, digest))


def _challenge(challenge: bytes, nonce: bytes) -> tuple[bytes, bytes, int]:
    """Read the broker's nonce, the salt and the number of iterations."""
    found = _attributes(challenge)
    if b"m" in found:
        raise _refused("the broker asks for an extension of SCRAM that is not known here")
    theirs = found.get(b"r", b"")
    if not theirs.startswith(nonce) or len(theirs) == len(nonce):
        raise _refused("the broker's nonce does not continue ours")
    number = found.get(b"i", b"")
    iterations = int(number) if number.isdigit() and len(number) < 10 else -1
    if not FEWEST_ITERATIONS <= iterations <= MOST_ITERATIONS:
        raise _refused(f"the broker asks for other than {FEWEST_ITERATIONS} to {MOST_ITERATIONS} iterations")
    return theirs, _decoded(found.get(b"s", b""), "salt"), iterations


def _check(outcome: bytes, signature: bytes) -> None:
    found = _attributes(outcome)
    if b"e" in found:
        raise _refused(f"the broker refuses: {_shown(found[b'e'])}")
    if not hmac.compare_digest(_decoded(found.get(b"v", b""), "signature"), signature):
        raise _refused("the broker's signature is wrong: it does not know the password")


def _attributes(message: bytes) -> dict[bytes, bytes]:
    """Read ``a=..,b=..``.  Of two values of one letter the first counts: it is where the letter belongs."""
    found: dict[bytes, bytes] = {}
    for part in message.split(b","):
        letter, sign, value = part[:1], part[1:2], part[2:]
        if sign != b"=":
            raise _refused("a SCRAM message of the broker has no a=value form")
        found.setdefault(letter, value)
    return found


def _decoded(text: bytes, what: str) -> bytes:
    try:
        decoded = base64.b64decode(text, validate=True)
    except binascii.Error:
        decoded = b""
    if not decoded:
        raise _refused(f"the broker's {what} is missing or not in base64")
    return decoded


def _mac(key: bytes, message: bytes, digest: str) -> bytes:
    return hmac.new(key, message, digest).digest()


def oauthbearer(token: str, extensions: Mapping[str, str]) -> Exchange:
    """Show a token.  A broker that does not accept it says why in its answer, and ends the exchange after ours."""
    if not token or not _VALUE.fullmatch(token):
        raise _refused("a token is not empty and has printable characters of ASCII alone")
    for name, value in extensions.items():
        if not _EXTENSION.fullmatch(name) or name.lower() == "auth" or not _VALUE.fullmatch(value):
            raise _refused(f"the extension {name!r} of a token has letters in its name and printable text as its value")
    fields = [f"auth=Bearer {token}", *(f"{name}={value}" for name, value in extensions.items())]
    challenge = yield _GS2 + b"\x01" + "\x01".join(fields).encode() + b"\x01\x01"
    if not challenge:
        return
    told = _shown(challenge).replace(token, "***")
    try:
        yield b"\x01"
    except BrokerError as error:
        raise BrokerError(error.code, f"{error.what}; the broker says of the token: {told}") from None
    raise _refused(f"the broker says of the token: {told}")


def token_of(callback: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return a token and its extensions, as ``oauth_cb`` of confluent-kafka returns them.

    That is ``(token, expiry)`` or ``(token, expiry, principal, extensions)``.
    """
    try:
        token, _expiry, *more = callback(None)
    except Exception as error:  # the user's code; its text may hold a secret
        raise _refused(f"oauth_cb raised {type(error).__name__}") from None
    extensions = next((each for each in more if isinstance(each, Mapping)), {})
    return str(token), {str(name): str(value) for name, value in extensions.items()}


def _shown(told: bytes) -> str:
    """Return what a broker told, for people: printable and not too long."""
    text = told[:_SHOWN].decode(errors="replace")
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _refused(what: str) -> BrokerError:
    return BrokerError(SASL_AUTHENTICATION_FAILED, what)
