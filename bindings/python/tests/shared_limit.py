"""One of the programs of common/tests/shared_limit.rs: asks for SECONDS, and prints when what was allowed was asked and
answered, in microseconds since 1970.

python shared_limit.py URL POLICIES SECONDS
"""

import asyncio
import sys
import time
from datetime import timedelta

from slidegate import SharedGate


def now_us() -> int:
    return time.time_ns() // 1000


async def ask(gate: SharedGate, until: int) -> None:
    while (asked := now_us()) < until:
        decision = await gate.check({"user": "alice"})
        if decision.error is not None:
            raise decision.error
        if decision:
            print(asked, now_us())


async def main(url: str, policies: str, seconds: str) -> None:
    gate = SharedGate(url, policies, deadline=timedelta(seconds=5))
    until = now_us() + int(seconds) * 1_000_000
    await asyncio.gather(*(ask(gate, until) for _ in range(8)))


asyncio.run(main(*sys.argv[1:]))
