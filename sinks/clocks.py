"""How far the clock of a server is from that of this process, for the doctor and for warnings.

No decision of Epochal reads a clock.  But others do: a Kafka broker refuses records whose timestamps are too far from
its own clock, an object store refuses requests that were signed at another time (S3: by 15 minutes), and people read
when epochs were committed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from epochal.sinks.questions import Answer

CLOCKS_S = 10.0
"""How many seconds clocks may differ.  Clocks that are kept in step differ by far less.

The checks of Kafka's topics take this as the largest difference between brokers and executors.
"""


def compared(whose: str, ask: Callable[[], float]) -> Answer:
    """Return how far a clock is from this one.  ``ask``: gives its time, in seconds since 1970.

    Half of the time that the answer takes is the inaccuracy.  A larger difference than :data:`CLOCKS_S` is a caution.
    """
    before = time.time()
    theirs = ask()
    after = time.time()
    ahead, inaccuracy = theirs - (before + after) / 2, (after - before) / 2
    told = f"{whose} is {_apart(ahead)} this machine's, give or take {inaccuracy:.3f} s"
    return Answer(told, [f"{told}{_KEEP_IN_STEP}"] if abs(ahead) - inaccuracy > CLOCKS_S else [])


def of_newest_record(topic: str, dated: float | None) -> Answer:
    """Return how old a topic's newest record is by this clock.  A record from the future is a caution.

    Kafka tells nobody its time.  So a clock that is behind this one is not seen.  ``dated``: None means no record.
    """
    if dated is None:
        return Answer(f"not known: Kafka tells nobody its time, and topic {topic!r} has no record")
    age = time.time() - dated
    told = f"a record of topic {topic!r} is dated {_apart(-age)} this machine's clock"
    return Answer(f"{told}; Kafka tells nobody its time", [f"{told}{_KEEP_IN_STEP}"] if -age > CLOCKS_S else [])


_KEEP_IN_STEP = (
    f". This is more than {CLOCKS_S:g} s. Keep the clocks of all machines in step (NTP). Otherwise a Kafka broker may"
    " refuse records, and an object store may refuse requests"
)


def _apart(ahead: float) -> str:
    return f"{abs(ahead):.3f} s {'ahead of' if ahead >= 0 else 'behind'}"
