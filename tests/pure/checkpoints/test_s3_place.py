"""Where a bucket of S3 lies: options come before the environment."""

from __future__ import annotations

from typing import Any

import pytest

from epochal.checkpoints.s3 import ENDPOINT, STYLE, with_location
from epochal.coordinator.model.errors import Misconfigured

OTHER = "http://other:9000"
MINIO = "http://minio:9000"
EU = "https://s3.eu-west-1.amazonaws.com"


@pytest.mark.parametrize(
    ("given", "environment", "endpoint", "region", "by_host"),
    [
        ({}, {}, "https://s3.us-east-1.amazonaws.com", "us-east-1", False),
        ({}, {"AWS_DEFAULT_REGION": "eu-west-1"}, EU, "eu-west-1", False),
        ({"region": "eu-west-1"}, {"AWS_REGION": "eu-west-3"}, EU, "eu-west-1", False),
        ({"AWS_REGION": "cn-north-1"}, {}, "https://s3.cn-north-1.amazonaws.com.cn", "cn-north-1", False),
        ({"endpoint": EU}, {"AWS_REGION": "us-east-2"}, EU, "eu-west-1", False),
        ({"endpoint": EU, "region": "us-east-2"}, {}, EU, "us-east-2", False),
        ({}, {"ENDPOINT": OTHER, "REGION": "moon"}, "https://s3.us-east-1.amazonaws.com", "us-east-1", False),
        ({}, {"AWS_ENDPOINT_URL": MINIO}, MINIO, "us-east-1", False),
        ({}, {"AWS_ENDPOINT_URL": OTHER, "AWS_ENDPOINT_URL_S3": MINIO}, MINIO, "us-east-1", False),
        ({}, {"AWS_ENDPOINT": "", "AWS_ENDPOINT_URL": MINIO}, MINIO, "us-east-1", False),
        ({"endpoint": MINIO}, {"AWS_ENDPOINT_URL_S3": OTHER}, MINIO, "us-east-1", False),
        ({"config": {"endpoint_url": MINIO}}, {"AWS_ENDPOINT_URL_S3": OTHER}, MINIO, "us-east-1", False),
        ({"AWS_ENDPOINT_URL_S3": MINIO}, {"AWS_ENDPOINT_URL_S3": OTHER}, MINIO, "us-east-1", False),
        ({"endpoint": MINIO}, {"AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"}, MINIO, "us-east-1", False),
        ({STYLE: True, "region": "eu-west-1"}, {}, EU, "eu-west-1", False),
        ({"endpoint": f"{MINIO}/"}, {}, MINIO, "us-east-1", False),
        ({"endpoint": "http://lake.minio", STYLE: True}, {}, "http://lake.minio", "us-east-1", True),
        ({"endpoint": "http://lake.minio", STYLE: "true"}, {}, "http://lake.minio", "us-east-1", True),
        (
            {},
            {"AWS_ENDPOINT": "http://lake.minio", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"},
            "http://lake.minio",
            "us-east-1",
            True,
        ),
    ],
)
def test_options_come_before_the_environment(
    given: dict[str, Any], environment: dict[str, str], endpoint: str, region: str, by_host: bool
) -> None:
    found = with_location("lake", given, environment)
    assert (found[ENDPOINT], found["region"], found[STYLE]) == (endpoint, region, by_host)
    assert not {"endpoint", "AWS_REGION", "endpoint_url"} & found.keys()
    assert not found.get("config")


def test_all_other_options_stay() -> None:
    given = {"access_key_id": "a", "config": {"secret_access_key": "b", "endpoint": MINIO}, "client_options": {}}
    found = with_location("lake", given, {})
    assert {name: found[name] for name in given} == {**given, "config": {"secret_access_key": "b"}}


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("s3.eu-west-1.amazonaws.com", "eu-west-1"),
        ("s3-eu-west-1.amazonaws.com", "eu-west-1"),
        ("s3.dualstack.ap-southeast-2.amazonaws.com", "ap-southeast-2"),
        ("s3-fips.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("s3-fips.dualstack.us-east-2.amazonaws.com", "us-east-2"),
        ("bucket.vpce-1a2b-3c4d.s3.us-east-2.vpce.amazonaws.com", "us-east-2"),
        ("s3.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("s3.eu-west-1.amazonaws.com.evil.example", "us-east-1"),
        ("minio-eu-west-1.example.com", "us-east-1"),
    ],
)
def test_the_region_is_read_from_an_endpoint_of_aws(host: str, region: str) -> None:
    assert with_location("lake", {"endpoint": f"https://{host}"}, {})["region"] == region


@pytest.mark.parametrize(
    ("given", "environment", "algorithm"),
    [
        ({}, {}, "sha256"),
        ({"checksum_algorithm": "crc64nvme"}, {}, "crc64nvme"),
        ({}, {"AWS_CHECKSUM_ALGORITHM": "crc64nvme"}, None),
        ({"endpoint": MINIO}, {}, None),
    ],
)
def test_a_put_into_aws_has_a_checksum(
    given: dict[str, Any], environment: dict[str, str], algorithm: str | None
) -> None:
    """A bucket with Object Lock refuses a put without one.  Stores of other makers may not know it."""
    assert with_location("lake", given, environment).get("checksum_algorithm") == algorithm


@pytest.mark.remedy(
    "with … the endpoint of the epoch log must begin with the bucket's name",
    "write the endpoint as https://BUCKET.HOST, or leave … out",
)
def test_a_bucket_that_is_in_no_part_of_the_url_is_refused() -> None:
    """Else the logs of all buckets of that endpoint would be one."""
    for endpoint in (MINIO, "http://lakeside.minio", "http://minio/lake."):
        with pytest.raises(Misconfigured, match="must begin with the bucket's name"):
            with_location("lake", {"endpoint": endpoint, STYLE: True}, {})
    assert with_location("lake", {"endpoint": "http://lake.minio", STYLE: True}, {})[STYLE]
    assert not with_location("lake", {"endpoint": MINIO}, {})[STYLE]


@pytest.mark.remedy(
    "the epoch log cannot lie in a directory bucket of S3 (Express One Zone): it was never tried there",
    "put the checkpoint into a general purpose bucket, or pass log=PostgresLog(dsn, name) from"
    " epochal.checkpoints.postgres",
)
def test_a_directory_bucket_is_refused() -> None:
    with pytest.raises(Misconfigured, match="directory bucket"):
        with_location("lake--use1-az4--x-s3", {"endpoint": MINIO}, {})
    assert with_location("lake", {"endpoint": MINIO}, {})[ENDPOINT] == MINIO


@pytest.mark.remedy(
    "the endpoint of the epoch log has a user or a password in it",
    "write the endpoint as https://HOST, and give credentials as options or by the environment",
)
def test_an_endpoint_with_a_password_is_refused_and_not_shown() -> None:
    with pytest.raises(Misconfigured, match="has a user or a password") as refused:
        with_location("lake", {"endpoint": "https://user:s3cr3t@minio"}, {})
    assert "s3cr3t" not in str(refused.value)
    assert with_location("lake", {"endpoint": "https://minio"}, {})
