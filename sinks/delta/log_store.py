"""Which log store of Delta writes the versions of a table, and what it promises if two drivers write at a time.

Marker and fence rest on one promise: a version is created only if there is none, and is visible whole or not at all.
Delta takes the log store that ``spark.delta.logStore.class`` names, for all tables; else the one that
``spark.delta.logStore.<scheme>.impl`` names for the scheme of the table's path; else its own choice for the scheme.

What its log stores promise is from Delta's sources (``io.delta.storage``, alike from 3.2 to 4.4) and from its page
"Storage configuration".
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

_PACKAGES = ("io.delta.storage", "org.apache.spark.sql.delta.storage")
_S3 = ("s3", "s3a", "s3n")
_ONE_DRIVER = "S3SingleDriverLogStore"
_DYNAMO = "S3DynamoDBLogStore"

_MADE_FOR = {
    "HDFSLogStore": ("hdfs",),
    "AzureLogStore": ("abfs", "abfss", "adl", "wasb", "wasbs"),
    "GCSLogStore": ("gs",),
    "IBMCOSLogStore": ("cos",),
    "OracleCloudLogStore": ("oci",),
    _DYNAMO: _S3,
}
"""Delta's log stores that keep drivers apart, each with the schemes on which it does."""
_ON_A_DISK = ("HDFSLogStore", "LocalLogStore")
_IN_PLACE = (_ONE_DRIVER, "GCSLogStore", "IBMCOSLogStore")
"""Log stores that write a version under its own name.  On a file system, this shows what is written so far."""
_KNOWN = (*_MADE_FOR, _ONE_DRIVER, "LocalLogStore")


class Drivers(enum.Enum):
    """How many drivers may write a table at a time with a log store."""

    ANY = "any"
    ANY_WITH_DYNAMO = "any, if all use the same DynamoDB table"
    NEARLY_ANY = "any, but for two that write in the same instant"
    ONE = "one"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class LogStore:
    """The log store that is at work.  ``kind``: the full name of its Java class; ``scheme``: that of the table."""

    kind: str
    scheme: str

    def __str__(self) -> str:
        return f"{self.kind} (scheme {self.scheme})"

    @property
    def _name(self) -> str | None:
        package, _, name = self.kind.rpartition(".")
        return name if package in _PACKAGES and name in _KNOWN else None

    def problem(self) -> str | None:
        """Return how this log store loses versions on this scheme; None if it is not known to."""
        if self._name is None:
            return None
        if self.scheme in _S3 and self._name not in (_ONE_DRIVER, _DYNAMO):
            return "on S3 it looks for the version, and then overwrites one that came in between"
        if self.scheme in ("file", "hdfs") and self._name in _IN_PLACE:
            return "a driver that dies while it writes a version leaves a part of it, which readers take for the whole"
        return None

    def drivers(self) -> Drivers:
        """Return how many drivers this log store keeps apart on this scheme."""
        name = self._name
        if name == _ONE_DRIVER:
            return Drivers.ONE
        if name is not None and self.scheme in _MADE_FOR.get(name, ()):
            return Drivers.ANY_WITH_DYNAMO if name == _DYNAMO else Drivers.ANY
        if name in _ON_A_DISK and self.scheme == "file":
            return Drivers.NEARLY_ANY
        return Drivers.UNKNOWN

    def promise(self) -> str:
        """Return in sentences what this means for two drivers at a time."""
        return f"Delta's log store here is {self}. {_PROMISES[self.drivers()]}"


_TWO = "Otherwise one driver overwrites a version of another, and its rows are lost without a notice."
_PROMISES = {
    Drivers.ANY: "It creates a version only if there is none, whichever driver writes it.",
    Drivers.ANY_WITH_DYNAMO: (
        "Condition: every writer of this table uses this log store, with the same DynamoDB table and region. It then"
        f" creates a version only if there is none. {_TWO}"
    ),
    Drivers.NEARLY_ANY: (
        "It creates a version only if there is none. But it looks and renames in two steps. Condition: no two drivers"
        " commit to this table in the same instant."
    ),
    Drivers.ONE: (
        "It keeps only the writers of one driver apart. Condition: one driver at a time writes this table, and an"
        f" older driver has ended before the query is started again. {_TWO} io.delta.storage.{_DYNAMO} needs no such"
        " condition."
    ),
    Drivers.UNKNOWN: (
        "Epochal does not know what it promises on this scheme. Condition: it creates a version only if there is"
        " none, and readers see a version whole or not at all; if it does not, one driver at a time writes this table."
    ),
}
NOT_KNOWN_YET = (
    "This holds where Delta's log store creates a version only if there is none, whichever driver writes it: that of"
    " S3 does so for one driver alone. Where a Spark session with Delta runs, guarantee() names the log store."
)
"""What is promised where no session runs that could be asked."""
