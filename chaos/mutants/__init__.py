"""Does the test suite notice when a guard is missing?

Planted bugs and mechanical mutants try this, each in a copy of the checkout.  ``planted`` runs the known bugs of
``tests/planted/*.toml``.  ``mechanical`` changes single expressions and statements of ``coordinator/``,
``checkpoints/`` and ``sinks/``, and runs the tests that reach them.  ``guards.registry`` lists every guard in that code
with the mutant that removes it.  All of this needs a checkout.
"""

from epochal.chaos.mutants.checkout import NoCheckout
from epochal.chaos.mutants.mutator import mechanical
from epochal.chaos.mutants.planting import planted

__all__ = ["NoCheckout", "mechanical", "planted"]
