"""A checkpoint that an older Spark began goes on with the Spark of `make test`, with an epoch in doubt."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyspark
import pytest

from epochal.chaos.demo.verdict import COMMITTED, from_log
from epochal.chaos.servers.spark import DELTA_VERSION
from epochal.coordinator.environment.versions import AT_OWN_RISK, PYSPARK
from tests.real.kills.conftest import local_drivers, make_job  # noqa: F401  (fixtures)
from tests.real.kills.support import LOCAL, SEEN_S, MakeJob, drivers, finish

NEWER_PYTHON = "EPOCHAL_NEWER_PYTHON"
"""Environment variable with the Python whose PySpark is the newer one."""


@pytest.mark.timeout(1200)
def test_a_newer_spark_finishes_the_epoch_and_goes_on(
    make_job: MakeJob,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = make_job(5)
    with job.start("after-decide:2=barrier") as driver:
        driver.see_blocked("after-decide:2=barrier", SEEN_S)
        assert {death.signal for death in driver.kill()} == {signal.SIGKILL}
    outcome = from_log(job.checkpoint_path, 2)
    monkeypatch.setattr(sys, "executable", os.environ[NEWER_PYTHON])
    asked = [sys.executable, "-c", "import pyspark; print(pyspark.__version__)"]
    assert subprocess.check_output(asked, text=True, timeout=120).strip() == PYSPARK != pyspark.__version__
    monkeypatch.delenv(AT_OWN_RISK, raising=False)
    monkeypatch.delenv(DELTA_VERSION, raising=False)  # the newer Spark takes its own
    with drivers(LOCAL, tmp_path / "newer") as newer:
        finish(replace(job, drivers=newer))
    assert outcome() == COMMITTED
    job.check_exact()
