"""What Hadoop's configuration says of an S3 store (``fs.s3a...``), as the options of obstore's client.

Read are the keys, the endpoint and its region, the style of the path, and whether TLS is used; a setting of the bucket
(``fs.s3a.bucket.NAME...``) comes before a general one.  ``fs.s3a.aws.credentials.provider`` is not read: without keys
the client asks the environment, and then the instance.  An endpoint of the environment is not asked for.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from typing import Any

from epochal.checkpoints import s3
from epochal.coordinator.model.errors import Misconfigured

Hadoop = tuple[Any, Any]
"""A JVM, and the ``org.apache.hadoop.conf.Configuration`` in it."""

_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_CENTRAL = "s3.amazonaws.com"
"""AWS's endpoint of no region.  The client asks that of the bucket's region instead."""


def options_of(hadoop: Hadoop, bucket: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that the configuration has for this bucket, with a whole answer to where the bucket lies.

    Of ``environment`` only a region counts, if the configuration names none: another endpoint would be another store
    than that of the checkpoint.
    """
    settings = _Settings(hadoop, bucket)
    _check_place(settings, environment)
    region = settings.get("endpoint.region")
    place = _place(
        settings.get("endpoint"), bucket, by_path=settings.is_true("path.style.access"), tls=settings.uses_tls()
    )
    given = {**place, **({"region": region} if region else {}), **_keys(settings)}
    return s3.with_location(bucket, given, {name: text for name, text in environment.items() if name in _REGIONS})


def _check_place(settings: _Settings, environment: Mapping[str, str]) -> None:
    """Raise ``Misconfigured`` where the checkpoint may lie in another store than the log would."""
    if settings.get("accesspoint.arn"):
        raise Misconfigured(
            "the checkpoint's bucket is an access point of S3 (fs.s3a.bucket.NAME.accesspoint.arn), and the client of"
            " the epoch log does not read that",
            help="pass log=ObjectLog(url, endpoint=...) with the endpoint of the access point, or"
            " log=PostgresLog(dsn, name) from epochal.checkpoints.postgres",
        )
    named = [name for name in _ENDPOINTS if environment.get(name)]
    if named and not settings.get("endpoint"):
        raise Misconfigured(
            f"{named[0]} in the environment names a store, and fs.s3a.endpoint names none: newer releases of Hadoop's"
            " client ask the first, older ones ask AWS",
            help="set fs.s3a.endpoint to the store of the checkpoint (s3.amazonaws.com for AWS), or unset"
            f" {named[0]} for the driver",
        )


def _keys(settings: _Settings) -> dict[str, Any]:
    key, secret = settings.secret("access.key"), settings.secret("secret.key")
    if not key or not secret:
        return {}
    return {"credential_provider": _Keys(key, secret, settings.secret("session.token"))}


def _place(endpoint: str, bucket: str, *, by_path: bool, tls: bool) -> dict[str, Any]:
    scheme, colon, host = endpoint.rstrip("/").rpartition("://")
    if not host or host == _CENTRAL:
        return {}
    endpoint = f"{scheme if colon else ('https' if tls else 'http')}://{host}"
    if by_path or s3.is_of_aws(endpoint) or _is_address(host):
        return {"endpoint": endpoint}
    return {"endpoint": endpoint.replace("://", f"://{bucket}."), s3.STYLE: True}


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
        from py4j.protocol import Py4JJavaError

        try:
            letters = self._conf.getPassword(key)
        except Py4JJavaError as error:
            raise Misconfigured(
                f"Hadoop cannot read {key}: {error.java_exception.toString()}",
                state="asked for the epoch log on an object store",
                help="correct hadoop.security.credential.provider.path, or the rights of the file that it names",
            ) from None
        return "" if letters is None else str(getattr(self._jvm, "java.lang.String").valueOf(letters)).strip()

    def _first(self, name: str, get: Callable[[str], str]) -> str:
        return next((value for prefix in self._prefixes if (value := get(prefix + name))), "")
