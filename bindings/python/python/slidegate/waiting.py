"""Waiting for a turn: in a block, and around a function. The same for everything that limits."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, TypeVar, cast

from ._middleware import call_async, call_sync, require_async, require_sync
from .decision import Decision
from .errors import RateLimited
from .reservation import AsyncReservation, Cost, Reservation, keep

__all__ = ["DEFAULT_WAIT", "Turn", "Turns"]

#: Seconds for which a call waits for its turn.
DEFAULT_WAIT = 10.0

#: What is limited by: a key, or attributes.
K = TypeVar("K")
F = TypeVar("F", bound=Callable[..., Any])


class Turn:
    """One turn, for `with` or `async with`: the block begins when it is there, and gets the decision.

    Under policies that limit what is in flight, the block holds its place until it ends; in an event loop, for as long
    as it lasts, and in a thread for the lease. If there is no turn in time, the block raises `RateLimited`.
    """

    def __init__(self, limit: Any, of: Any, options: dict[str, Any]) -> None:
        self._limit = limit
        self._of = of
        self._options = options
        self._cost: Cost = options.get("cost", 1)
        self._reservation: Reservation | AsyncReservation | None = None
        self._keeper: asyncio.Future[None] | None = None

    def __enter__(self) -> Decision:
        require_sync(self._limit)
        return self._entered(call_sync(self._limit, *self._call()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(self._reservation, Reservation):
            self._reservation.record(self._cost)
            self._reservation.__exit__(kind, error, trace)

    async def __aenter__(self) -> Decision:
        require_async(self._limit)
        decision = self._entered(await call_async(self._limit, *self._call()))
        if self._reservation is not None:
            self._keeper = asyncio.ensure_future(keep(self._reservation))
        return decision

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
        if isinstance(self._reservation, AsyncReservation):
            self._reservation.record(self._cost)
            await self._reservation.__aexit__(kind, error, trace)
        else:
            self.__exit__(kind, error, trace)

    def _call(self) -> tuple[str, Any, dict[str, Any]]:
        if not getattr(self._limit, "_has_in_flight", False):
            return "acquire", self._of, self._options
        # What is held is what is settled: the estimate of a policy would be a guess.
        return "acquire_reservation", self._of, {**self._options, "cost": self._cost}

    def _entered(self, answer: Any) -> Decision:
        decision: Decision = answer
        if isinstance(answer, (Reservation, AsyncReservation)):
            decision = answer.decision
            self._reservation = answer
        if not decision.allowed:
            raise RateLimited(decision) from decision.error
        return decision


class Turns(Generic[K]):
    """What everything with `acquire` has."""

    __slots__ = ()

    def turn(
        self, of: K, /, *, cost: Cost | None = None, policy: str | None = None, timeout: float = DEFAULT_WAIT
    ) -> Turn:
        """A turn for a `with` or `async with` block, which waits for it up to `timeout` seconds. Make one per block."""
        options: dict[str, Any] = {"cost": cost, "policy": policy}
        given = {name: value for name, value in options.items() if value is not None}
        return Turn(self, of, {**given, "timeout": timeout})

    def wrap(
        self,
        of: K | Callable[..., K],
        /,
        *,
        cost: Cost | None = None,
        policy: str | None = None,
        timeout: float = DEFAULT_WAIT,
    ) -> Callable[[F], F]:
        """A decorator of functions and coroutines that waits for a turn, and then calls. `of` may be a function of the
        call's arguments. Without a turn in time, the call raises `RateLimited`."""

        def decorate(function: F) -> F:
            def turn(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Turn:
                key = of(*args, **kwargs) if callable(of) else of
                return self.turn(key, cost=cost, policy=policy, timeout=timeout)

            if inspect.iscoroutinefunction(function):

                @functools.wraps(function)
                async def wait_async(*args: Any, **kwargs: Any) -> Any:
                    async with turn(args, kwargs):
                        return await function(*args, **kwargs)

                return cast(F, wait_async)

            @functools.wraps(function)
            def wait(*args: Any, **kwargs: Any) -> Any:
                with turn(args, kwargs):
                    return function(*args, **kwargs)

            return cast(F, wait)

        return decorate
