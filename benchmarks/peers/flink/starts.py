"""The starts of one endless Flink job, each in its own process, which can be struck."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers.flink import environment
from epochal.chaos.strike.nemesis import Victim

PROGRAM = "benchmarks.peers.flink.endless"
ROOT = Path(__file__).parents[3]


@dataclass
class Starts:
    """Begins starts of the job.

    ``folder`` holds ``source``, which gets the input, and a folder for every start with its checkpoints.  A start
    continues from the newest checkpoint of the newest start that has one, as an operator of Flink would arrange it.
    """

    folder: Path
    bootstrap: str
    topic: str
    guarantee: str
    victims: list[Victim] = field(default_factory=list)

    @property
    def source(self) -> Path:
        return self.folder / "source"

    @property
    def newest(self) -> Victim:
        return self.victims[-1]

    def begin(self) -> Victim:
        """Begin one more start.  Earlier starts may still be running."""
        since = self.checkpoint()
        folder = self._of(len(self.victims))
        checkpoints = folder / "checkpoints"
        checkpoints.mkdir(parents=True)
        asked = {
            "source": str(self.source),
            "bootstrap": self.bootstrap,
            "topic": self.topic,
            "guarantee": self.guarantee,
            "checkpoints": str(checkpoints),
            "since": str(since) if since is not None else None,
            "jars": [str(jar) for jar in environment.connectors()],
        }
        printed = folder / "printed.log"
        with printed.open("wb") as output:
            process = subprocess.Popen(
                [str(environment.python()), "-m", PROGRAM, json.dumps(asked)],
                cwd=folder,
                env={**environment.variables(folder), "PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.victims.append(Victim(process, folder, printed, ()))
        return self.newest

    def checkpoint(self) -> Path | None:
        """Return the checkpoint from which the next start continues; None if there is none."""
        for number in reversed(range(len(self.victims))):
            if whole := self._whole(number):
                return whole[max(whole)]
        return None

    @property
    def completed(self) -> int:
        """The number of the newest start's newest checkpoint.  Numbers continue from start to start."""
        return max(self._whole(len(self.victims) - 1), default=0)

    def forget(self) -> None:
        """Delete all checkpoints."""
        for number in range(len(self.victims)):
            shutil.rmtree(self._of(number) / "checkpoints")

    def close(self) -> None:
        for victim in self.victims:
            victim.close()

    def _of(self, number: int) -> Path:
        return self.folder / f"start-{number}"

    def _whole(self, number: int) -> dict[int, Path]:
        """Number -> checkpoint of a start.  Only complete ones count: Flink writes the metadata last, in one step."""
        found = self._of(number).glob("checkpoints/*/chk-*/_metadata")
        return {int(metadata.parent.name.removeprefix("chk-")): metadata.parent for metadata in found}
