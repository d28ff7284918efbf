"""Brokers that ask users who they are and let them do what they are granted, and no more."""

from __future__ import annotations

import subprocess
from pathlib import Path

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from epochal.chaos.servers import java
from epochal.chaos.servers.kafka import KafkaServer
from epochal.chaos.servers.process import wait_until
from tests.real.sinks.kafka.support import SECRET

USER = "writer"
STORE_PASSWORD = "of-the-key-store"


class GuardedKafka(KafkaServer):
    """At ``guarded`` one logs in and has the rights that were granted; at ``bootstrap`` everybody has all."""

    @property
    def guarded(self) -> str:
        return self.proxied_upstream

    def _login(self) -> dict[str, str]:
        """How one logs in at ``guarded``."""
        login = "org.apache.kafka.common.security.plain.PlainLoginModule"
        return {
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PROXIED:SASL_PLAINTEXT",
            "listener.name.proxied.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.proxied.plain.sasl.jaas.config": f'{login} required user_{USER}="{SECRET}";',
        }

    def _settings(self) -> dict[str, str]:
        return {
            **super()._settings(),
            **self._login(),
            "advertised.listeners": f"PLAINTEXT://{self.address},PROXIED://{self.guarded}",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "transaction.max.timeout.ms": "60000",
        }

    def grant(self, kind: ResourceType, name: str, *rights: str) -> None:
        """Give the user these rights, and wait until the broker knows."""
        what = kind, name, ResourcePatternType.LITERAL, f"User:{USER}", "*"
        granted = [AclBinding(*what, AclOperation[right], AclPermissionType.ALLOW) for right in rights]
        all_of_it = AclBindingFilter(*what, AclOperation.ANY, AclPermissionType.ANY)
        with AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0}) as admin:
            for done in admin.create_acls(granted).values():
                done.result(120)

            def known() -> bool | None:
                return set(granted) <= set(admin.describe_acls(all_of_it).result(120)) or None

            assert wait_until(known, 120)

    def revoke(self, kind: ResourceType, name: str) -> None:
        """Take all rights of this thing from the user, and wait until the broker knows."""
        what = kind, name, ResourcePatternType.LITERAL, f"User:{USER}", "*"
        all_of_it = AclBindingFilter(*what, AclOperation.ANY, AclPermissionType.ANY)
        with AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0}) as admin:
            for done in admin.delete_acls([all_of_it]).values():
                done.result(120)
            assert wait_until(lambda: None if admin.describe_acls(all_of_it).result(120) else True, 120)


class SecuredKafka(GuardedKafka):
    """The same over TLS, with a certificate of its own making, and with passwords as SCRAM keeps them."""

    @property
    def certificate(self) -> Path:
        """In PEM; who has it knows the broker."""
        return self.directory / "broker.pem"

    def add_user(self) -> None:
        """The user, with its password."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        added = UserScramCredentialUpsertion(USER, info, SECRET.encode())
        with AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0}) as admin:
            admin.alter_user_scram_credentials([added])[USER].result(120)

    def _prepare(self) -> None:
        self._make_certificate()
        super()._prepare()

    def _make_certificate(self) -> None:
        if self.certificate.exists():
            return
        key = ["-genkeypair", "-keyalg", "EC", "-groupname", "secp256r1", "-dname", "CN=broker", "-validity", "30"]
        self._keytool(*key, "-ext", "SAN=ip:127.0.0.1", "-ext", "BC=ca:true", "-storetype", "PKCS12")
        self._keytool("-exportcert", "-rfc", "-file", str(self.certificate))

    def _keytool(self, *arguments: str) -> None:
        """Of any Java, also of one that comes without the command."""
        argv = [str(java.java_home() / "bin" / "java"), "-m", "java.base/sun.security.tools.keytool.Main"]
        store = ["-alias", "broker", "-keystore", str(self._store), "-storepass", STORE_PASSWORD]
        subprocess.run([*argv, *arguments, *store], check=True, capture_output=True, timeout=120)

    @property
    def _store(self) -> Path:
        return self.directory / "broker.p12"

    def _login(self) -> dict[str, str]:
        login = "org.apache.kafka.common.security.scram.ScramLoginModule"
        return {
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PROXIED:SASL_SSL",
            "listener.name.proxied.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.proxied.scram-sha-512.sasl.jaas.config": f"{login} required;",
            "listener.name.proxied.ssl.keystore.type": "PKCS12",
            "listener.name.proxied.ssl.keystore.location": str(self._store),
            "listener.name.proxied.ssl.keystore.password": STORE_PASSWORD,
            "listener.name.proxied.ssl.key.password": STORE_PASSWORD,
        }
