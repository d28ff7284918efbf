"""What Hadoop's configuration says of S3, read from a real one in a JVM."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("obstore")

from epochal.chaos.contract.logs import filled
from epochal.chaos.servers.hdfs import HadoopClient
from epochal.chaos.servers.objects import ACCESS_KEY, BUCKET, SECRET_KEY, ObjectServer
from epochal.checkpoints.log import EpochLog
from epochal.checkpoints.objects import ObjectLog
from epochal.checkpoints.s3a import Hadoop, options_of
from epochal.coordinator.model.errors import EpochalError
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


def test_hadoops_defaults_set_nothing(configured: Configured) -> None:
    assert options_of(configured({}), BUCKET) == {}


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"endpoint": "http://127.0.0.1:9000"}, {"endpoint": "http://127.0.0.1:9000"}),
        ({"endpoint": "http://[::1]:9000"}, {"endpoint": "http://[::1]:9000"}),
        ({"endpoint": "127.0.0.1"}, {"endpoint": "https://127.0.0.1"}),
        ({"endpoint": " 127.0.0.1:9000 ", "connection.ssl.enabled": "false"}, {"endpoint": "http://127.0.0.1:9000"}),
        ({"endpoint": "minio:9000", "path.style.access": "true"}, {"endpoint": "https://minio:9000"}),
        (
            {"endpoint": "https://minio:9000", "path.style.access": "TRUE", "endpoint.region": "here"},
            {"endpoint": "https://minio:9000", "region": "here"},
        ),
        (
            {"endpoint": "minio:9000"},
            {"endpoint": "https://lake.minio:9000", "virtual_hosted_style_request": True},
        ),
        ({"endpoint": "s3.amazonaws.com"}, {}),
        ({"endpoint": "s3.eu-west-1.amazonaws.com"}, {"region": "eu-west-1"}),
        ({"endpoint": "https://s3.cn-north-1.amazonaws.com.cn"}, {"region": "cn-north-1"}),
        ({"endpoint": "s3.eu-west-1.amazonaws.com", "endpoint.region": "us-east-2"}, {"region": "us-east-2"}),
        ({"endpoint.region": "us-east-2", "bucket.lake.endpoint.region": "eu-west-3"}, {"region": "eu-west-3"}),
        ({"endpoint.region": "us-east-2", "bucket.pond.endpoint.region": "eu-west-3"}, {"region": "us-east-2"}),
        ({"access.key": "half"}, {}),
        ({"secret.key": "half"}, {}),
    ],
)
def test_a_setting_becomes_an_option(
    configured: Configured, settings: dict[str, str], options: dict[str, object]
) -> None:
    assert options_of(configured(settings), BUCKET) == options


@pytest.mark.parametrize("prefix", ["", "bucket.lake."])
def test_keys_are_given_together_and_not_shown(configured: Configured, prefix: str) -> None:
    settings = {f"{prefix}{name}": value for name, value in KEYS.items()}
    for token in (None, "t0ken"):
        given = configured({**settings, **({f"{prefix}session.token": token} if token else {})})
        (provider,) = options_of(given, BUCKET).values()
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
    (provider,) = options_of((jvm, conf), BUCKET).values()
    assert provider()["secret_access_key"] == SECRET_KEY


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
