"""The objects below one URL of an object store, through the package obstore.

An error of the store becomes an ``OSError`` whose text has no secrets.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import quote

from epochal.checkpoints import s3
from epochal.coordinator.model.errors import Misconfigured

SCHEMES = (*s3.SCHEMES, "gs", "abfs", "abfss", "wasb", "wasbs")
"""Schemes of the URLs that can be opened here."""

Options = Mapping[str, Any]
"""Arguments of obstore's stores: ``access_key_id``, ``endpoint``, ``region``, ``client_options`` and so on."""

_CLIENT = {"timeout": "20s", "connect_timeout": "5s"}
_RETRY = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}
_URL = re.compile(r"(?P<scheme>\w+)://(?P<place>[^/?#]+)(?P<path>/[^?#]*)?")
_SECRET = re.compile(r"key|secret|token|password|sas", re.IGNORECASE)
"""In the name of an option or of an environment variable: its value is not shown."""
_OF_CLOUDS = ("AWS_", "AZURE_", "GOOGLE_")
_MOVES = {
    "azure_storage_endpoint": "endpoint",
    "azure_endpoint": "endpoint",
    "azure_storage_use_emulator": "use_emulator",
    "azure_storage_use_fabric_endpoint": "use_fabric_endpoint",
    "azure_use_fabric_endpoint": "use_fabric_endpoint",
    "google_base_url": "base_url",
}
"""A variable of the environment that makes the client ask another store -> the option that comes before it.

For S3, which has no such place in its URL, ``s3.py`` decides it.
"""
_GCS = "https://storage.googleapis.com"
_HIDDEN = "***"
_BODY = re.compile(r"<[?!A-Za-z].*", re.DOTALL)
_MOST = 600  # characters of an error's text
_IN_HEADERS = {f"{front}{name}" for name in ("access_key_id", "session_token", "token") for front in ("", "aws_")}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class NoSuchRequest(OSError):
    """The store answered that it does not know a request with this condition."""


_BY_STATUS: Mapping[str, type[OSError]] = {"401": PermissionError, "403": PermissionError, "501": NoSuchRequest}
"""What a status means where obstore has no exception of its own for it."""


def located(bucket: Bucket, options: Options) -> Options:
    """Return the options, for S3 with the location of the bucket; what they leave out comes from the environment."""
    return s3.with_location(bucket.name, options, os.environ) if bucket.scheme in s3.SCHEMES else options


def is_on_objects(url: str) -> bool:
    """Return whether the URL is one of an object store that can be opened here."""
    return url.partition("://")[0] in SCHEMES


class Bucket:
    """The objects below ``url``, by their names.

    ``options``: a function that returns obstore's arguments.  It is called before the first request.
    """

    def __init__(self, url: str, options: Callable[[], Options]) -> None:
        self.scheme, self.name, self.path = _parts_of(url)
        self.url = f"{self.scheme}://{self.name}{self.path}"
        self.options = options
        self._opened: Any = None
        self._endpoint = ""
        self._secrets: Sequence[str] = ()

    @property
    def shown(self) -> str:
        """The URL, and once the store was opened its endpoint: two stores may have a bucket of this name."""
        return self._hidden(f"{self.url} at {self._endpoint}") if self._endpoint else self.url

    def list(self) -> list[str]:
        """Return all names; see :meth:`lengths`."""
        return [*self.lengths()]

    def lengths(self, folder: str = "") -> dict[str, int]:
        """Return the name of each object below a folder, with its length in bytes, in no order.

        A listing of several pages is no snapshot.  Without the mark that some clients make for the URL's own folder.
        """
        with self._translated() as (obstore, store):
            pages = obstore.list(store, prefix=folder or None)
            return {str(found["path"]): int(found["size"]) for page in pages for found in page if found["path"]}

    def read(self, name: str) -> bytes:
        """Return the whole content of an object; ``FileNotFoundError`` if there is none."""
        with self._translated() as (obstore, store):
            return bytes(obstore.get(store, name).bytes())

    def create(self, name: str, data: bytes) -> None:
        """Create an object with one conditional put; ``FileExistsError`` if the store says that the name is taken.

        The client repeats a request whose connection broke.  So after any error the object may be there, and after a
        ``FileExistsError`` it may be the caller's own.
        """
        with self._translated() as (obstore, store):
            obstore.put(store, name, data, mode="create", use_multipart=False)

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects.  It is no error if some are gone already."""
        try:
            self._delete(names)
        except FileNotFoundError:  # some stores stop at the first name that is gone
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    self._delete([name])

    def _delete(self, names: Sequence[str]) -> None:
        with self._translated() as (obstore, store):
            obstore.delete(store, list(names))

    # --- the client -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _translated(self) -> Iterator[tuple[Any, Any]]:
        """Give obstore and an open store; turn its errors into an ``OSError``."""
        obstore = _client()
        kinds = obstore.exceptions
        store = self._store(obstore)
        try:
            yield obstore, store
        except FileNotFoundError as error:
            raise FileNotFoundError(self._text(error)) from None
        except kinds.AlreadyExistsError as error:
            raise FileExistsError(self._text(error)) from None
        except (kinds.PermissionDeniedError, kinds.UnauthenticatedError) as error:
            raise PermissionError(self._text(error)) from None
        except NotImplementedError as error:  # so says the client itself
            raise NoSuchRequest(self._text(error)) from None
        except kinds.BaseError as error:
            raise _kind_of(str(error))(self._text(error)) from None

    def _store(self, obstore: Any) -> Any:
        if self._opened is None:
            given = dict(self.options())
            completed = self._completed(given)
            self._secrets = _secrets_of(given)
            try:
                self._opened = self._new(obstore.store, completed)
            except (obstore.exceptions.BaseError, ValueError, TypeError) as error:
                raise self._not_opened(self._text(error), given) from None
            self._endpoint = str(completed.get(s3.ENDPOINT, ""))
        return self._opened

    def _new(self, stores: Any, completed: Options) -> Any:
        if self.scheme in s3.SCHEMES:  # from_url refuses the name of the endpoint that counts most
            return stores.S3Store(self.name, prefix=self.path.strip("/") or None, **completed)
        return stores.from_url(self._obstore_url(), **completed)

    def _not_opened(self, why: str, given: Options) -> Misconfigured:
        return Misconfigured(
            f"the object store of the epoch log cannot be opened: {why}",
            state=f"{self.url}, with the options {', '.join(sorted(given)) or 'of the environment alone'}",
            help="correct the URL or the options of ObjectLog(url, ...), which are those of obstore's stores",
        )

    def _obstore_url(self) -> str:
        """Return the URL as obstore wants it: with an escaped path, and ``abfs`` for ``wasb``."""
        scheme, place = self.scheme, self.name
        if scheme.startswith("wasb"):
            scheme, place = scheme.replace("wasb", "abfs"), place.replace(".blob.", ".dfs.")
        return f"{scheme}://{place}{quote(self.path)}"

    def _completed(self, given: Options) -> dict[str, Any]:
        """Return the options with our time limits, unless they have their own."""
        for name, value in _options_and_environment(given):
            if name.lower() in _IN_HEADERS and _CONTROL.search(str(value)):  # the client dies of it in a request
                raise self._not_opened(f"the value of {name} has a line break or another control character", given)
        if self.scheme not in s3.SCHEMES:
            self._refuse_to_move(given)
        ours = {"conditional_put": "etag"} if self.scheme in s3.SCHEMES else {}  # overrides AWS_CONDITIONAL_PUT
        if self.scheme == "gs" and not _has_option(given, "base_url", "google_"):
            ours = {"base_url": _GCS}  # overrides that of a file with keys
        return {
            **ours,
            **given,
            "client_options": {**_CLIENT, "allow_http": _is_plain(given), **(given.get("client_options") or {})},
            "retry_config": {**_RETRY, **(given.get("retry_config") or {})},
        }

    def _refuse_to_move(self, given: Options) -> None:
        """Raise ``Misconfigured`` if the environment names another store than the URL."""
        cloud = "google_" if self.scheme == "gs" else "azure_"
        for variable in filter(os.environ.get, os.environ):
            option = _MOVES.get(variable.lower(), "")
            if option and variable.lower().startswith(cloud) and not _has_option(given, option, cloud):
                raise Misconfigured(
                    f"{variable} in the environment would move the epoch log to another store",
                    state=f"{self.url} names the store; a driver without this variable would have another log",
                    help=f"unset {variable} for the driver, or pass log=ObjectLog(url, {option}=...)",
                )

    def _text(self, error: Exception) -> str:
        """Return what the error says, without secrets, and without the client's state.

        Of the store's answer only code and message: S3 repeats the whole request, with the token, for the user to see.
        """
        text = str(error).partition("\n\nDebug source")[0].strip() or type(error).__name__
        text = _BODY.sub(lambda body: _code_and_message(body[0]), text)
        text = self._hidden(text)
        return text if len(text) <= _MOST else f"{text[:_MOST]} ..."

    def _hidden(self, text: str) -> str:
        """Return the text without secrets."""
        for secret in self._secrets:
            text = text.replace(secret, _HIDDEN)
        return text


def _parts_of(url: str) -> tuple[str, str, str]:
    """Return scheme, bucket and path of a URL.  A wrong URL is not shown, as it may hold a password."""
    found = _URL.fullmatch(url)
    if found is None or found["scheme"] not in SCHEMES:
        raise _refused(f"its URL must be one of {', '.join(f'{scheme}://' for scheme in SCHEMES)}, without ? and #")
    of_azure = found["scheme"].startswith(("abfs", "wasb"))
    if ":" in found["place"] or ("@" in found["place"]) != of_azure:
        form = "container@account.dfs.core.windows.net" if of_azure else "the bucket's name alone"
        raise _refused(f"after {found['scheme']}:// must stand {form}")
    return found["scheme"], found["place"], (found["path"] or "").rstrip("/")


def _refused(why: str) -> Misconfigured:
    return Misconfigured(
        f"the epoch log cannot be a folder of that object store: {why}",
        state="the URL is not shown, as it may hold a password",
        help="write it as s3a://bucket/checkpoint/epochal/log, and give credentials as options or by the environment",
    )


def _secrets_of(given: Mapping[str, Any]) -> list[str]:
    """Return what must not be shown, longest first: values of options and of the environment."""
    found = {
        value for name, value in _options_and_environment(given) if _SECRET.search(name) and isinstance(value, str)
    }
    found.update(getattr(given.get("credential_provider"), "secrets", ()))
    of_client = given.get("client_options") or {}
    found.update(
        str(value) for value in (of_client.get("proxy_url", ""), *of_client.get("default_headers", {}).values())
    )
    return sorted(found - {""}, key=len, reverse=True)


def _kind_of(text: str) -> type[OSError]:
    """Return the kind of an error for which obstore has none of its own, from its whole text."""
    if any(f"<Code>{code}</Code>" in text or f"(code: {code})" in text for code in s3.CREDENTIAL_ERRORS):
        return PermissionError
    found = re.search(r"status code: (\d{3}) |\(code: (\d{3})\)", text)  # the second is of one object of a deletion
    return _BY_STATUS.get(found[1] or found[2], OSError) if found is not None else OSError


def _code_and_message(body: str) -> str:
    """Return code and message of an answer in XML."""
    words = [found[1] for tag in ("Code", "Message") if (found := re.search(f"<{tag}>([^<]*)</{tag}>", body))]
    return ": ".join(words) or "an answer that is not understood"


def _has_option(given: Options, option: str, cloud: str) -> bool:
    """Return whether an option is given; the client also knows it with the cloud's name in front."""
    names = {f"{front}{option}" for front in ("", cloud, f"{cloud}storage_")}
    return any(name.lower() in names for name in (*given, *(given.get("config") or {})))


def _is_plain(given: Mapping[str, Any]) -> bool:
    """Return whether somebody has asked for an endpoint without TLS."""
    return any(
        "endpoint" in name.lower() and str(value).startswith("http://")
        for name, value in _options_and_environment(given)
    )


def _options_and_environment(given: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the options, and the variables of the environment that obstore looks at."""
    of_clouds = ((name, value) for name, value in os.environ.items() if name.startswith(_OF_CLOUDS))
    return [*given.items(), *(given.get("config") or {}).items(), *of_clouds]


def _client() -> Any:
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError as error:
        raise Misconfigured(
            f"an epoch log on an object store needs the package obstore: {error}",
            help="pip install 'epochal[object-store]'",
        ) from error
    return obstore
