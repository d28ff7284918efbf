"""What is special about S3: where a bucket lies, as options of obstore's client, and the policy of a bucket.

The client asks the environment for everything that it is not told.  It believes ``AWS_ENDPOINT_URL_S3`` even more than
the option ``endpoint``.  But two drivers of one checkpoint may have different environments.  So the endpoint, its style
and the region are decided here, once, and the client is told all of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from epochal.coordinator.model.errors import Misconfigured

ENDPOINT = "AWS_ENDPOINT_URL_S3"
"""The client believes this name more than all others.  It must be written so: the client knows no other spelling."""

STYLE = "virtual_hosted_style_request"
"""Whether the bucket's name stands in the host of the endpoint, and not in the path."""

_ENDPOINTS = ("endpoint_url_s3", "endpoint_url", "endpoint")
_REGIONS = ("region", "default_region")
_DEFAULT_REGION = "us-east-1"
SCHEMES = ("s3", "s3a")
CREDENTIAL_ERRORS = ("AccessDenied", "ExpiredToken", "InvalidToken", "TokenRefreshRequired", "RequestTimeTooSkewed")
"""Codes of S3 that say that the credentials do not do, whatever the status of the answer."""

_DIRECTORY_BUCKET = "--x-s3"
_OF_AWS = re.compile(r"([a-z0-9.-]+\.)?amazonaws\.com(\.cn)?(:\d+)?", re.IGNORECASE)
_REGION = re.compile(r"[.-]([a-z]{2}(?:-[a-z]+)+-\d+)\.")


def with_location(bucket: str, given: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the options with endpoint, style and region; an option comes before a variable of the environment.

    ``Misconfigured`` for a directory bucket, and if the bucket's name should stand in the endpoint's host and does not:
    then all buckets would be one.
    """
    if bucket.endswith(_DIRECTORY_BUCKET):
        raise Misconfigured(
            "the epoch log cannot lie in a directory bucket of S3 (Express One Zone): it was never tried there",
            state=f"bucket {bucket}",
            help="put the checkpoint into a general purpose bucket, or pass log=PostgresLog(dsn, name) from"
            " epochal.checkpoints.postgres",
        )
    options = _by_short_name(given)
    said = {**_of_environment(environment), **options}
    place = options if _first(options, _ENDPOINTS) else said
    endpoint = _first(place, _ENDPOINTS).rstrip("/")
    by_host = bool(endpoint) and _is_true(place.get(STYLE))
    if "@" in host_of(endpoint):
        raise Misconfigured(
            "the endpoint of the epoch log has a user or a password in it",
            state="it is not shown",
            help="write the endpoint as https://HOST, and give credentials as options or by the environment",
        )
    region = _first(options, _REGIONS) or region_of(endpoint) or _first(said, _REGIONS) or _DEFAULT_REGION
    endpoint = endpoint or of_aws(region)
    if by_host and not host_of(endpoint).startswith(f"{bucket}."):
        raise Misconfigured(
            f"with {STYLE} the endpoint of the epoch log must begin with the bucket's name",
            state=f"{endpoint} does not begin with {bucket}, so all buckets there would be one",
            help=f"write the endpoint as https://BUCKET.HOST, or leave {STYLE} out",
        )
    decided = {ENDPOINT: endpoint, STYLE: by_host, "region": region}
    if is_of_aws(endpoint) and "checksum_algorithm" not in said:
        decided["checksum_algorithm"] = "sha256"  # a bucket with Object Lock takes no put without one
    return {**_without(given, (*_ENDPOINTS, *_REGIONS, STYLE)), **decided}


def of_aws(region: str) -> str:
    """Return the endpoint of AWS in a region."""
    return f"https://s3.{region}.amazonaws.com" + (".cn" if region.startswith("cn-") else "")


def is_of_aws(endpoint: str) -> bool:
    return _OF_AWS.fullmatch(host_of(endpoint)) is not None


def region_of(endpoint: str) -> str:
    """Return the region that an endpoint of AWS names (also of its dualstack, FIPS and VPC endpoints), or ``""``."""
    found = _REGION.search(host_of(endpoint)) if is_of_aws(endpoint) else None
    return found[1] if found is not None else ""


def host_of(endpoint: str) -> str:
    return endpoint.rpartition("://")[2].partition("/")[0]


def policy(bucket: str, path: str, region: str = "") -> str:
    """Return the bucket policy that forbids everybody to overwrite an object below ``/path``, as JSON.

    It refuses each put without ``If-None-Match``, so also copies into that folder: lift it to restore a backup.
    """
    statement = {
        "Sid": "EpochalNobodyOverwrites",
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:PutObject",
        "Resource": f"arn:{_partition_of(region)}:s3:::{bucket}{path}/*",
        "Condition": {"Null": {"s3:if-none-match": "true"}},
    }
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]}, indent=2)


def _partition_of(region: str) -> str:
    """Return the word for AWS in the names of its resources (ARN) in a region."""
    if region.startswith("cn-"):
        return "aws-cn"
    return "aws-us-gov" if region.startswith("us-gov-") else "aws"


def _by_short_name(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options by their short names; the client knows each also with ``aws_``, and in any case."""
    return {_short(name): value for name, value in _all(given) if value is not None}


def _of_environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {_short(name): text for name, text in environment.items() if name.startswith("AWS_") and text}


def _all(given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from (given.get("config") or {}).items()
    yield from given.items()


def _without(given: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    kept = {name: value for name, value in given.items() if _short(name) not in names}
    if kept.get("config"):
        kept["config"] = {name: value for name, value in kept["config"].items() if _short(name) not in names}
    return kept


def _short(name: str) -> str:
    return name.lower().removeprefix("aws_")


def _first(said: Mapping[str, Any], names: tuple[str, ...]) -> str:
    return next((str(said[name]).strip() for name in names if said.get(name)), "")


def _is_true(value: object) -> bool:
    return str(value).lower() in ("true", "1", "t", "yes", "y", "on")
