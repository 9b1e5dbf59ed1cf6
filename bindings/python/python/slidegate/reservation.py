"""Reservations: cost that is held until it is known.

Leaving a `with` block settles what was recorded, or cancels if nothing was: it is not left held until its time is over.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any

from .decision import Decision, Numbers, PolicyDecision, policy_decision_of
from .errors import SlidegateError

__all__ = ["AsyncReservation", "Cost", "Reservation", "SettledPolicy", "Settlement", "awaited", "keep", "settlement_of"]

#: A number, or up to 16 numbers by name, such as `{"input": 900, "output": 4096}`.
Cost = int | Mapping[str, int]


class SettledPolicy:
    """What a change did under one policy. `decision` is the key after it; its `cost` is what was charged or released."""

    __slots__ = ("decision", "outcome", "policy")

    def __init__(self, policy: str, outcome: str, decision: PolicyDecision) -> None:
        self.policy = policy
        self.outcome = outcome
        self.decision = decision


class Settlement:
    """What a change of a reservation came to."""

    __slots__ = ("outcome", "policies", "ticket", "until_ms")

    #: `changed`; `already_settled`: nothing was charged again; `expired`: its time was over, and what was not charged
    #: then is; `denied`: an extension that does not fit, and changed nothing; `unknown`: the store does not know it;
    #: `queued`: the change is made when the store is back; `none`: nothing was held, so nothing was sent.
    outcome: str
    policies: Sequence[SettledPolicy]
    #: For the next change, if the reservation stays open. Older ones remain valid meanwhile.
    ticket: str | None
    #: When it ends by itself, in milliseconds since 1970, if that is known.
    until_ms: int | None

    def __init__(
        self,
        outcome: str,
        policies: Sequence[SettledPolicy] = (),
        ticket: str | None = None,
        until_ms: int | None = None,
    ) -> None:
        self.outcome = outcome
        self.policies = policies
        self.ticket = ticket
        self.until_ms = until_ms

    def __bool__(self) -> bool:
        return self.outcome != "denied"

    def __repr__(self) -> str:
        return f"<Settlement {self.outcome}>"


def settlement_of(outcome: str, ticket: str, policies: list[tuple[str, Numbers]]) -> Settlement:
    """What the native part returns."""
    decisions = [(status, policy_decision_of(numbers)) for status, numbers in policies]
    settled = [SettledPolicy(one.policy or "", status, one) for status, one in decisions]
    return Settlement(outcome, settled, ticket or None)


class _Held:
    """What both kinds of reservations know. `change` asks the gate or the service."""

    def __init__(self, decision: Decision, ticket: str | None, ttl: float, change: Callable[..., Any]) -> None:
        self.decision = decision
        #: The text by which any program settles, extends or cancels it; `None` if nothing is held.
        self.ticket = ticket
        #: Seconds that it lasts from the last change on.
        self.ttl = ttl
        self._change = change
        self._recorded: Cost | None = None
        self._ended = ticket is None
        self._kept_at = time.monotonic()

    @property
    def allowed(self) -> bool:
        return self.decision.allowed

    def __bool__(self) -> bool:
        return self.decision.allowed

    @property
    def recorded(self) -> Cost | None:
        return self._recorded

    def record(self, cost: Cost) -> None:
        """Sets the total cost so far, for the end of the block to settle. It makes no call."""
        self._recorded = cost

    def _keep(self, settlement: Settlement, ttl: timedelta | None = None) -> Settlement:
        if settlement.outcome == "changed" and settlement.ticket:
            self.ticket = settlement.ticket
            self._kept_at = time.monotonic()
            if ttl is not None:
                self.ttl = ttl.total_seconds()
        return settlement

    def _end(self, settlement: Settlement) -> Settlement:
        self._ended = True
        return settlement

    @property
    def is_open(self) -> bool:
        """Whether something is held that was neither settled nor cancelled here. It may have expired."""
        return not self._ended

    @property
    def needs_extension(self) -> bool:
        """Whether a third of its time is over."""
        return not self._ended and time.monotonic() - self._kept_at >= self.ttl / 3


_NOTHING = Settlement("none")
#: A loop has weak references to its tasks only.
_CLOSING: set[asyncio.Future[Settlement]] = set()


def _closed(task: asyncio.Future[Settlement]) -> None:
    _CLOSING.discard(task)
    if not task.cancelled():
        task.exception()  # marks it as retrieved: asyncio logs errors that nobody reads


class Reservation(_Held):
    """A decision, and what it holds if it is allowed. Use it in a `with` block, or settle it."""

    def settle(self, cost: Cost) -> Settlement:
        """Charges the total cost and releases the rest. If it fails, the end of the block repeats it."""
        self._recorded = cost
        return _NOTHING if self._ended else self._end(self._change("settle", self.ticket, cost=cost))

    def settle_so_far(self, cost: Cost) -> Settlement:
        """Charges the total cost so far, keeps the rest held and restarts the time. If it fails, the next includes it."""
        self._recorded = cost
        return _NOTHING if self._ended else self._keep(self._change("settle_so_far", self.ticket, cost=cost))

    def extend(self, ttl: timedelta | None = None, *, hold: Cost | None = None) -> Settlement:
        """Restarts the time, or changes it or what is held in all. A denial is no error: see `Settlement.outcome`."""
        if self._ended:
            return _NOTHING
        return self._keep(self._change("extend", self.ticket, ttl=ttl, hold=hold), ttl)

    def cancel(self) -> Settlement:
        """Releases everything, and refunds policies that count requests: the request did not run."""
        return _NOTHING if self._ended else self._end(self._change("cancel", self.ticket))

    def close(self) -> Settlement:
        """Settles what was recorded, or cancels. Does nothing after either."""
        if self._ended:
            return _NOTHING
        return self.cancel() if self._recorded is None else self.settle(self._recorded)

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except SlidegateError:
            # It ends by its time. The error of the block is the one to tell.
            if error is None:
                raise


class AsyncReservation(_Held):
    """As `Reservation`, for `async with`."""

    async def settle(self, cost: Cost) -> Settlement:
        self._recorded = cost
        return _NOTHING if self._ended else self._end(await self._change("settle", self.ticket, cost=cost))

    async def settle_so_far(self, cost: Cost) -> Settlement:
        self._recorded = cost
        return _NOTHING if self._ended else self._keep(await self._change("settle_so_far", self.ticket, cost=cost))

    async def extend(self, ttl: timedelta | None = None, *, hold: Cost | None = None) -> Settlement:
        if self._ended:
            return _NOTHING
        return self._keep(await self._change("extend", self.ticket, ttl=ttl, hold=hold), ttl)

    async def cancel(self) -> Settlement:
        return _NOTHING if self._ended else self._end(await self._change("cancel", self.ticket))

    async def close(self) -> Settlement:
        if self._ended:
            return _NOTHING
        return await (self.cancel() if self._recorded is None else self.settle(self._recorded))

    async def __aenter__(self) -> AsyncReservation:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # In a task of its own, as this one may be cancelled, and stay so.
        task = asyncio.ensure_future(self.close())
        _CLOSING.add(task)
        task.add_done_callback(_closed)
        try:
            await asyncio.shield(task)
        except SlidegateError:
            if error is None:
                raise


async def awaited(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


async def keep(reservation: Reservation | AsyncReservation) -> None:
    """Settles in parts what is recorded, and keeps the rest held."""
    settled: Cost | None = None
    while reservation.is_open:
        await asyncio.sleep(min(1.0, reservation.ttl / 3))
        recorded = reservation.recorded
        try:
            if recorded is not None and recorded != settled:
                await awaited(reservation.settle_so_far(recorded))
                settled = recorded
            elif reservation.needs_extension:
                await awaited(reservation.extend())
        except SlidegateError:
            pass  # the next part includes this one
