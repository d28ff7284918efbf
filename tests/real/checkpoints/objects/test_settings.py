"""What Hadoop's configuration says of S3, read from a real one in a JVM."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

pytest.importorskip("obstore")

from epochal.chaos.contract.logs import filled
from epochal.chaos.servers.hdfs import HadoopClient
from epochal.chaos.servers.objects import ACCESS_KEY, BUCKET, SECRET_KEY, ObjectServer
from epochal.checkpoints.log import EpochLog
from epochal.checkpoints.objects import ObjectLog
from epochal.checkpoints.s3 import ENDPOINT, STYLE
from epochal.checkpoints.s3a import Hadoop, options_of
from epochal.coordinator.model.errors import EpochalError, Misconfigured
from epochal.coordinator.query.checkpoint import default_log

Configured = Callable[[Mapping[str, str]], Hadoop]
KEYS = {"access.key": ACCESS_KEY, "secret.key": SECRET_KEY}


@pytest.fixture(scope="module")
def client() -> Iterator[Hadoop]:
    with HadoopClient() as started:
        yield started


@pytest.fixture
def configured(client: Hadoop) -> Configured:
    """Makes a configuration of Hadoop's defaults and these settings; ``fs.s3a.`` is put before names without it."""

    def make(settings: Mapping[str, str]) -> Hadoop:
        jvm, conf = client
        made = jvm.org.apache.hadoop.conf.Configuration(conf)
        for name, value in settings.items():
            made.set(name if "." in name and name.split(".")[0] in ("fs", "hadoop") else f"fs.s3a.{name}", value)
        return jvm, made

    return make


@pytest.fixture(autouse=True)
def no_keys_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)


def place_of(hadoop: Hadoop, environment: Mapping[str, str] = MappingProxyType({})) -> tuple[str, str, bool]:
    """Endpoint, region, and whether the bucket's name stands in the host."""
    found = options_of(hadoop, BUCKET, environment)
    return found[ENDPOINT], found["region"], found[STYLE]


def test_hadoops_defaults_are_aws(configured: Configured) -> None:
    assert place_of(configured({})) == ("https://s3.us-east-1.amazonaws.com", "us-east-1", False)


def test_the_environment_may_name_a_region(configured: Configured) -> None:
    place = ("https://s3.eu-west-3.amazonaws.com", "eu-west-3", False)
    assert place_of(configured({}), {"AWS_REGION": "eu-west-3", "AWS_ENDPOINT": "http://other"}) == place


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"])
@pytest.mark.remedy(
    "… in the environment names a store, and fs.s3a.endpoint names none: newer releases of Hadoop's client ask the"
    " first, older ones ask AWS",
    "set fs.s3a.endpoint to the store of the checkpoint (s3.amazonaws.com for AWS), or unset … for the driver",
)
def test_a_store_that_only_some_clients_ask_is_refused(configured: Configured, variable: str) -> None:
    """Else the checkpoint could lie on one store, and its log on another."""
    environment = {variable: "http://minio:9000"}
    with pytest.raises(Misconfigured, match=f"{variable} in the environment names a store"):
        place_of(configured({}), environment)
    aws = ("https://s3.us-east-1.amazonaws.com", "us-east-1", False)
    assert place_of(configured({"endpoint": "s3.amazonaws.com"}), environment) == aws
    assert place_of(configured({"endpoint": "127.0.0.1"}), environment)[0] == "https://127.0.0.1"


@pytest.mark.remedy(
    "the checkpoint's bucket is an access point of S3 (fs.s3a.bucket.NAME.accesspoint.arn), and the client of the epoch"
    " log does not read that",
    "pass log=ObjectLog(url, endpoint=...) with the endpoint of the access point, or log=PostgresLog(dsn, name) from"
    " epochal.checkpoints.postgres",
)
def test_an_access_point_is_refused(configured: Configured) -> None:
    arn = {"bucket.lake.accesspoint.arn": "arn:aws:s3:eu-west-1:123456789012:accesspoint/lake"}
    with pytest.raises(Misconfigured, match="is an access point"):
        place_of(configured(arn))
    assert place_of(configured({"bucket.pond.accesspoint.arn": "arn"}))


HERE = "us-east-1"


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({"endpoint": "http://127.0.0.1:9000"}, ("http://127.0.0.1:9000", HERE, False)),
        ({"endpoint": "http://[::1]:9000"}, ("http://[::1]:9000", HERE, False)),
        ({"endpoint": "127.0.0.1"}, ("https://127.0.0.1", HERE, False)),
        ({"endpoint": " 127.0.0.1:9 ", "connection.ssl.enabled": "false"}, ("http://127.0.0.1:9", HERE, False)),
        ({"endpoint": "minio:9000", "path.style.access": "true"}, ("https://minio:9000", HERE, False)),
        (
            {"endpoint": "https://minio:9000", "path.style.access": "TRUE", "endpoint.region": "here"},
            ("https://minio:9000", "here", False),
        ),
        ({"endpoint": "minio:9000"}, ("https://lake.minio:9000", HERE, True)),
        ({"endpoint": "https://minio/"}, ("https://lake.minio", HERE, True)),
        ({"endpoint": "s3.amazonaws.com"}, ("https://s3.us-east-1.amazonaws.com", HERE, False)),
        (
            {"endpoint": "s3.amazonaws.com", "endpoint.region": "eu-west-3"},
            ("https://s3.eu-west-3.amazonaws.com", "eu-west-3", False),
        ),
        ({"endpoint": "s3.eu-west-1.amazonaws.com"}, ("https://s3.eu-west-1.amazonaws.com", "eu-west-1", False)),
        (
            {"endpoint": "https://s3.dualstack.us-west-2.amazonaws.com"},
            ("https://s3.dualstack.us-west-2.amazonaws.com", "us-west-2", False),
        ),
        (
            {"endpoint": "https://s3.cn-north-1.amazonaws.com.cn"},
            ("https://s3.cn-north-1.amazonaws.com.cn", "cn-north-1", False),
        ),
        (
            {"endpoint.region": "us-east-2", "bucket.lake.endpoint.region": "cn-north-1"},
            ("https://s3.cn-north-1.amazonaws.com.cn", "cn-north-1", False),
        ),
        (
            {"endpoint.region": "us-east-2", "bucket.pond.endpoint.region": "eu-west-3"},
            ("https://s3.us-east-2.amazonaws.com", "us-east-2", False),
        ),
    ],
)
def test_a_setting_becomes_a_place(
    configured: Configured, settings: dict[str, str], place: tuple[str, str, bool]
) -> None:
    assert place_of(configured(settings)) == place


@pytest.mark.parametrize("half", ["access.key", "secret.key"])
def test_half_of_the_keys_is_none(configured: Configured, half: str) -> None:
    assert "credential_provider" not in options_of(configured({half: "half"}), BUCKET, {})


@pytest.mark.parametrize("prefix", ["", "bucket.lake."])
def test_keys_are_given_together_and_not_shown(configured: Configured, prefix: str) -> None:
    settings = {f"{prefix}{name}": value for name, value in KEYS.items()}
    for token in (None, "t0ken"):
        given = configured({**settings, **({f"{prefix}session.token": token} if token else {})})
        provider = options_of(given, BUCKET, {})["credential_provider"]
        assert provider() == {
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
            "token": token,
            "expires_at": None,
        }
        assert SECRET_KEY in provider.secrets
        assert SECRET_KEY not in repr(provider)


def test_keys_may_lie_in_a_credential_file(configured: Configured, tmp_path: Path) -> None:
    file = {"hadoop.security.credential.provider.path": f"jceks://file{tmp_path}/keys.jceks"}
    jvm, conf = configured(file)
    store = jvm.org.apache.hadoop.security.alias.CredentialProviderFactory.getProviders(conf)[0]
    for name, value in KEYS.items():
        store.createCredentialEntry(f"fs.s3a.{name}", _letters(jvm, value))
    store.flush()
    provider = options_of((jvm, conf), BUCKET, {})["credential_provider"]
    assert provider()["secret_access_key"] == SECRET_KEY


@pytest.mark.remedy(
    "Hadoop cannot read …: …",
    "correct hadoop.security.credential.provider.path, or the rights of the file that it names",
)
def test_a_credential_file_that_cannot_be_read_is_named(configured: Configured, tmp_path: Path) -> None:
    (tmp_path / "keys.jceks").write_text("no key store")
    file = {"hadoop.security.credential.provider.path": f"jceks://file{tmp_path}/keys.jceks"}
    with pytest.raises(Misconfigured, match=r"Hadoop cannot read fs\.s3a\.bucket\.lake\.access\.key"):
        options_of(configured(file), BUCKET, {})
    assert "credential_provider" not in options_of(configured({}), BUCKET, {})


def _letters(jvm: Any, text: str) -> Any:
    """A ``char[]`` of Java; py4j makes none of a Python text."""
    return jvm.java.nio.CharBuffer.allocate(len(text)).put(text).array()


def test_the_default_log_of_a_checkpoint_has_these_settings(
    configured: Configured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a session token of the environment, which belongs to other keys, is not taken."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-other-keys")
    with ObjectServer() as server:
        seen: list[str] = []
        obey = server._obey

        def noting(asked: Any) -> Any:
            seen.append(asked.headers.get("x-amz-security-token", ""))
            return obey(asked)

        monkeypatch.setattr(server, "_obey", noting)
        hadoop = configured({**KEYS, "endpoint": server.endpoint})
        log: EpochLog = default_log(f"s3a://{BUCKET}/checkpoint", lambda: hadoop)
        entries = filled(log, 3)
        assert list(default_log(f"s3a://{BUCKET}/checkpoint", lambda: hadoop).read()) == entries
        assert set(seen) == {""}


def test_a_secret_of_the_configuration_is_not_shown(configured: Configured) -> None:
    with ObjectServer() as server:
        server.stop()
        hadoop = configured({**KEYS, "endpoint": f"{server.endpoint}/{SECRET_KEY}"})
        log = ObjectLog.of_spark(f"s3a://{BUCKET}/log", lambda: hadoop)
        with pytest.raises(EpochalError) as raised:
            log.read()
    assert SECRET_KEY not in f"{raised.value} {raised.value!r} {raised.value.args} {log!r}"
    assert "***" in str(raised.value)
