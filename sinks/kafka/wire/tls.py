"""TLS as librdkafka's options describe it, made by Python's ``ssl``."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Tls:
    """What ``ssl.*`` options say.  Files are read when a context is made, on the host that connects."""

    ca_location: str | None = None
    ca_pem: str | None = field(default=None, repr=False)
    certificate_location: str | None = None
    certificate_pem: str | None = field(default=None, repr=False)
    key_location: str | None = None
    key_pem: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    crl_location: str | None = None
    ciphers: str | None = None
    verifies: bool = True
    identifies: bool = True

    def context(self) -> ssl.SSLContext:
        """Return a new context.  Raise ``OSError``, with the option in it, for what cannot be read or used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.verifies and self.identifies
        context.verify_mode = ssl.CERT_REQUIRED if self.verifies else ssl.CERT_NONE
        if self.ciphers is not None:
            ciphers = self.ciphers
            _use("ssl.cipher.suites", lambda: context.set_ciphers(ciphers))
        self._trust(context)
        if self.certificate_location is not None or self.certificate_pem is not None:
            _use("ssl.certificate and ssl.key", lambda: self._identify(context))
        return context

    def _trust(self, context: ssl.SSLContext) -> None:
        location, pem, crl = self.ca_location, self.ca_pem, self.crl_location
        if location is not None and location != "probe":
            folder = os.path.isdir(location)
            given = {"capath" if folder else "cafile": location}
            _use(f"ssl.ca.location={location}", lambda: context.load_verify_locations(**given))
        if pem is not None:
            _use("ssl.ca.pem", lambda: context.load_verify_locations(cadata=pem))
        if pem is None and location in (None, "probe"):
            context.load_default_certs()
        if crl is not None:
            _use(f"ssl.crl.location={crl}", lambda: context.load_verify_locations(cafile=crl))
            context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF

    def _identify(self, context: ssl.SSLContext) -> None:
        with ExitStack() as files:
            certificate, key = self.certificate_location, self.key_location
            if self.certificate_pem is not None:
                certificate = files.enter_context(_file(self.certificate_pem))
            if self.key_pem is not None:
                key = files.enter_context(_file(self.key_pem))
            # Without a password OpenSSL would ask for it on the terminal; an empty one is refused instead.
            context.load_cert_chain(certificate or "", key, password=self.key_password or "")


@contextmanager
def _file(text: str) -> Iterator[str]:
    """Yield the name of a file with this text that only we may read, and remove it: ``ssl`` reads keys from files."""
    descriptor, name = tempfile.mkstemp(suffix=".pem")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        yield name
    finally:
        os.unlink(name)


def _use(option: str, act: Callable[[], None]) -> None:
    try:
        act()
    except ssl.SSLError as error:
        reason = getattr(error, "reason", None) or error.strerror or str(error)
        raise ssl.SSLError(error.errno, f"{option} cannot be used: {reason}") from None
    except OSError as error:
        raise OSError(error.errno, f"{option} cannot be used: {error.strerror}") from None
    except (TypeError, ValueError) as error:
        raise OSError(f"{option} cannot be used: {error}") from None
