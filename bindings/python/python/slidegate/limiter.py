"""The limiter: one quota for many keys, in the memory of this process."""

from __future__ import annotations

from . import _slidegate
from .decision import Decision
from .gate import started
from .waiting import DEFAULT_WAIT, Turns

__all__ = ["Limiter"]


class Limiter(_slidegate.Limiter, Turns[str | bytes]):
    """One quota for many keys, in the memory of this process. All but `acquire` return at once."""

    __slots__ = ()

    async def acquire(self, key: str | bytes, cost: int | None = None, *, timeout: float = DEFAULT_WAIT) -> Decision:
        """Waits for its turn, and charges the cost: first come, first served for each key. It is denied if there is no
        turn within `timeout` seconds, as soon as that is certain. Cancelled, it leaves the queue and charges nothing."""
        return await started(self.start_acquire, key, cost, timeout)

    def acquire_sync(self, key: str | bytes, cost: int | None = None, *, timeout: float = DEFAULT_WAIT) -> Decision:
        return self.run_acquire(key, cost, timeout)
