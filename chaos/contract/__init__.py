"""What must a sink or an epoch log do?

Test suites, which the author of a sink or a log subclasses.  They need pytest.

::

    from epochal.chaos.contract import SinkContract, SinkHarness

    class MyHarness(SinkHarness): ...

    class TestMySink(SinkContract):
        @pytest.fixture
        def harness(self, tmp_path): return MyHarness(tmp_path)

``docs/authors.md`` explains how to write a sink and test it.  :mod:`epochal.chaos.contract.spark` is for sinks whose
rows are Spark DataFrames.  Raises Misconfigured at import if pytest is missing.
"""

from epochal.coordinator.model.errors import Misconfigured

try:
    import pytest
except ModuleNotFoundError as missing:
    raise Misconfigured(
        "the contract suites need the package pytest, which is not installed", help="pip install pytest"
    ) from missing

# This must come before the imports.  Then a failing assertion shows its values, as in the author's own tests.
pytest.register_assert_rewrite(
    *(f"epochal.chaos.contract.{name}" for name in ("sinks", "idempotent", "audited", "marked", "logs"))
)

from epochal.chaos.contract.harness import ABORTED, SinkHarness, act_in_another_process, query  # noqa: E402
from epochal.chaos.contract.idempotent import IdempotentContract  # noqa: E402
from epochal.chaos.contract.logs import LogContract, ProcessContract  # noqa: E402
from epochal.chaos.contract.marked import MarkedContract  # noqa: E402
from epochal.chaos.contract.sinks import ModeContract, SinkContract, Start  # noqa: E402

__all__ = [
    "ABORTED",
    "IdempotentContract",
    "LogContract",
    "MarkedContract",
    "ModeContract",
    "ProcessContract",
    "SinkContract",
    "SinkHarness",
    "Start",
    "act_in_another_process",
    "query",
]
