"""What Hadoop's configuration says of an S3 store (``fs.s3a...``), as the options of obstore's client.

Read are the keys, the endpoint and its region, the style of the path, and whether TLS is used; a setting of the bucket
(``fs.s3a.bucket.NAME...``) comes before a general one.  ``fs.s3a.aws.credentials.provider`` is not read: without keys
the client asks the environment, and then the instance.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Any

Hadoop = tuple[Any, Any]
"""A JVM, and the ``org.apache.hadoop.conf.Configuration`` in it."""

_REGION = re.compile(r"s3[.-](?P<region>[a-z]{2}-[a-z-]+-\d)\.amazonaws\.com.*")
_OF_AWS = re.compile(r"s3([.-][a-z0-9-]+)?\.amazonaws\.com.*")


def options_of(hadoop: Hadoop, bucket: str) -> dict[str, Any]:
    """Return the options that the configuration has for this bucket; those that it does not set are left out."""
    settings = _Settings(hadoop, bucket)
    endpoint = settings.get("endpoint")
    region = settings.get("endpoint.region") or _region_of(endpoint)
    return {
        **_place(endpoint, bucket, by_path=settings.is_true("path.style.access"), tls=settings.uses_tls()),
        **({"region": region} if region else {}),
        **_keys(settings),
    }


def _keys(settings: _Settings) -> dict[str, Any]:
    key, secret = settings.secret("access.key"), settings.secret("secret.key")
    if not key or not secret:
        return {}
    return {"credential_provider": _Keys(key, secret, settings.secret("session.token"))}


def _place(endpoint: str, bucket: str, *, by_path: bool, tls: bool) -> dict[str, Any]:
    scheme, colon, host = endpoint.rpartition("://")
    if not host or _OF_AWS.fullmatch(host):
        return {}  # the client knows it by the region
    scheme = scheme if colon else ("https" if tls else "http")
    if by_path or _is_address(host):
        return {"endpoint": f"{scheme}://{host}"}
    return {"endpoint": f"{scheme}://{bucket}.{host}", "virtual_hosted_style_request": True}


def _region_of(endpoint: str) -> str:
    found = _REGION.fullmatch(endpoint.rpartition("://")[2])
    return found["region"] if found is not None else ""


def _is_address(host: str) -> bool:
    """Return whether a host is an IP address; a bucket's name cannot be put before it."""
    try:
        ipaddress.ip_address(host.rstrip("/").rpartition(":")[0].strip("[]") or host)
    except ValueError:
        return False
    return True


class _Keys:
    """Gives obstore the keys.

    If they were single options, obstore would add a session token of the environment, which belongs to other keys.
    """

    def __init__(self, key: str, secret: str, token: str) -> None:
        self.secrets = (secret, token)
        self._given = {
            "access_key_id": key,
            "secret_access_key": secret,
            "token": token or None,
            "expires_at": None,
        }

    def __call__(self) -> dict[str, Any]:
        return self._given


class _Settings:
    """Hadoop's settings of one bucket."""

    def __init__(self, hadoop: Hadoop, bucket: str) -> None:
        self._jvm, self._conf = hadoop
        self._prefixes = (f"fs.s3a.bucket.{bucket}.", "fs.s3a.")

    def get(self, name: str) -> str:
        return self._first(name, lambda key: str(self._conf.getTrimmed(key, "")))

    def secret(self, name: str) -> str:
        """Return a setting that may also lie in a credential file of Hadoop."""
        return self._first(name, self._password)

    def is_true(self, name: str) -> bool:
        return self.get(name).lower() == "true"

    def uses_tls(self) -> bool:
        return self.get("connection.ssl.enabled").lower() != "false"

    def _password(self, key: str) -> str:
        letters = self._conf.getPassword(key)
        return "" if letters is None else str(getattr(self._jvm, "java.lang.String").valueOf(letters)).strip()

    def _first(self, name: str, get: Callable[[str], str]) -> str:
        return next((value for prefix in self._prefixes if (value := get(prefix + name))), "")
