"""The files of a checkpoint on an object store, in a process where no Spark runs: for the console command.

The credentials are those of the environment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from epochal.checkpoints.bucket import Bucket, located
from epochal.coordinator.model.errors import SinkUnavailable


class ObjectFiles:
    """Implements ``stage.Files`` for paths below ``root``, a URL."""

    def __init__(self, root: str) -> None:
        self._bucket = Bucket(root, lambda: located(self._bucket, {}))

    def listing(self, folder: str) -> Mapping[str, int] | None:
        """Return name to length in bytes of the entries of ``folder`` (-1: a folder); None if there is no folder.

        An object without content is no entry: it is the mark that Hadoop makes for a folder.
        """
        found: dict[str, int] = {}
        for name, length in self._lengths(folder).items():
            entry, slash, _ = name.partition("/")
            if length:
                found[entry] = -1 if slash else length
        return found or None

    def read(self, path: str) -> bytes | None:
        """Return the whole file, or None if it does not exist."""
        with self._asking(), contextlib.suppress(FileNotFoundError):
            return self._bucket.read(self._name(path))
        return None

    def parquet_rows(self, path: str) -> int:
        from pyarrow import BufferReader, parquet

        return int(parquet.read_metadata(BufferReader(self.read(path) or b"")).num_rows)

    def sync(self, folder: str, top: str) -> None:
        """Do nothing: an object is durable once its put is answered."""

    def sync_file(self, path: str) -> None:
        """Do nothing: see ``sync``."""

    def delete(self, folder: str, recursive: bool = True) -> None:
        """Delete a folder.  If not ``recursive``, do nothing: without objects there is no folder.

        The marks of empty folders stay, because the client cannot name them.  The next start deletes them.
        """
        if recursive:
            names = [f"{self._name(folder)}/{name}" for name in self._lengths(folder)]
            with self._asking():
                self._bucket.delete(names)

    def _lengths(self, folder: str) -> Mapping[str, int]:
        """Return the objects below a folder, by their names in it."""
        with self._asking():
            found = self._bucket.lengths(self._name(folder))
        return {name.removeprefix(f"{self._name(folder)}/"): length for name, length in found.items()}

    def _name(self, path: str) -> str:
        return path.removeprefix(self._bucket.url).strip("/")

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SinkUnavailable(
                f"the files of the checkpoint cannot be reached: {error}",
                state=f"{self._bucket.shown}; asked without Spark, with the credentials of the environment",
                help="set the credentials of the store for this command, and AWS_ENDPOINT_URL_S3 for a store that is"
                " not AWS; or ask from a process with a SparkSession",
            ) from None
