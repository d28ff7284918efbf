"""The driver program of ``tests/real/kills`` with Hadoop's client of S3.

    python -m tests.matrix.s3a_driver MASTER CONF

``CONF``: settings of the session, as JSON.
"""

from __future__ import annotations

import json
import sys

from epochal.chaos.job import jvm
from epochal.chaos.servers import jars
from epochal.chaos.strike.nemesis import end_with_parent
from epochal.coordinator.environment.versions import S3A_JARS
from tests.real.kills import driver

if __name__ == "__main__":
    end_with_parent()
    driver.main(sys.argv[1], {**jvm.short_lived(*jars.resolve(S3A_JARS)), **json.loads(sys.argv[2])})
