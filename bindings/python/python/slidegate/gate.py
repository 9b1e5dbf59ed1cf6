"""Gates: many policies, one decision. In the memory of this process, or shared over Redis."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from os import PathLike
from pathlib import Path
from typing import Any

from ._slidegate import Completions, Engine, Job, ManualClock, after_fork, before_fork, shutdown
from .decision import Decision
from .errors import InvalidRequest
from .reservation import AsyncReservation, Cost, Reservation, Settlement
from .waiting import DEFAULT_WAIT, Turns

__all__ = ["Gate", "Policies", "SharedGate"]

#: The policies of a gate: a list of mappings with the keys of the configuration file, or such a file's text.
Policies = str | Sequence[Mapping[str, Any]]

Attributes = Mapping[str, str | bytes]


class Gate(Turns[Attributes]):
    """Policies that count in the memory of this process. All calls but `acquire` return at once.

    >>> gate = Gate([{"name": "per-user", "scope": ["user"], "quota": "100/1m"}])
    >>> gate.check({"user": "alice"}).remaining
    99

    A request is charged under all policies that apply, or under none. Attributes are `str` or `bytes`; those that
    are addresses, by default `ip`, are compared and counted as such. `draft` and `x_ratelimit` choose the header
    fields of decisions, as in the configuration file.
    """

    def __init__(
        self,
        policies: Policies,
        *,
        clock: ManualClock | None = None,
        max_keys: int | None = None,
        max_waiting: int | None = None,
        draft: str | None = None,
        x_ratelimit: str | None = None,
    ) -> None:
        self._engine = Engine.memory(*_text(policies), clock, max_keys, max_waiting, draft, x_ratelimit)

    @classmethod
    def from_file(cls, path: str | PathLike[str], **options: Any) -> Gate:
        """Policies of a file, such as the configuration of the service."""
        gate = cls.__new__(cls)
        settings = {"clock": None, "max_keys": None, "max_waiting": None, "draft": None, "x_ratelimit": None}
        if unknown := set(options) - set(settings):
            raise TypeError(f"unexpected keyword argument {min(unknown)!r}")
        gate._engine = Engine.memory(*_file(path), **(settings | options))
        return gate

    def check(
        self,
        attributes: Attributes,
        *,
        cost: Cost | None = None,
        policy: str | None = None,
        idempotency_key: str | None = None,
    ) -> Decision:
        """Decides a request, and charges it if it is allowed. With `policy`, only that one decides."""
        return self._engine.run(Job.decide("check", attributes, cost, policy, idempotency_key))

    async def acquire(
        self,
        attributes: Attributes,
        *,
        cost: Cost | None = None,
        policy: str | None = None,
        timeout: float = DEFAULT_WAIT,
    ) -> Decision:
        """Waits for its turn, and charges the cost: first come, first served for each key. It is denied if there is no
        turn within `timeout` seconds, as soon as that is certain. Cancelled, it leaves the queue and charges nothing."""
        return await started(self._engine.start, Job.acquire(timeout, attributes, cost, policy))

    def acquire_sync(
        self,
        attributes: Attributes,
        *,
        cost: Cost | None = None,
        policy: str | None = None,
        timeout: float = DEFAULT_WAIT,
    ) -> Decision:
        return self._engine.run(Job.acquire(timeout, attributes, cost, policy))

    def peek(self, attributes: Attributes, *, cost: Cost | None = None, policy: str | None = None) -> Decision:
        """What `check` would say, without charging."""
        return self._engine.run(Job.decide("peek", attributes, cost, policy))

    def refund(self, attributes: Attributes, *, cost: Cost | None = None, policy: str | None = None) -> Decision:
        """Returns cost that was charged and still counts."""
        return self._engine.run(Job.decide("refund", attributes, cost, policy))

    def penalize(self, attributes: Attributes, *, cost: Cost | None = None, policy: str | None = None) -> Decision:
        """Charges a cost even if it exceeds the limit."""
        return self._engine.run(Job.decide("penalize", attributes, cost, policy))

    def reset(self, attributes: Attributes, *, policy: str | None = None) -> bool:
        """Forgets what the request's keys have used; returns whether there was anything."""
        return self._engine.run(Job.decide("reset", attributes, None, policy))

    def configure(self, policies: Policies) -> None:
        """Replaces the policies. Usage stays with their names; on an error, nothing changes."""
        self._engine.configure(*_text(policies))

    def reserve(
        self,
        attributes: Attributes,
        *,
        cost: Cost | None = None,
        ttl: timedelta | None = None,
        policy: str | None = None,
        idempotency_key: str | None = None,
    ) -> Reservation:
        """Decides a request, and holds its cost if it is allowed, for `ttl` (1 ms to 1 h) unless it is settled."""
        decision, ticket, lasts = self._engine.run(Job.reserve(attributes, cost, policy, idempotency_key, ttl))
        return Reservation(decision, ticket, lasts, self._change)

    async def acquire_reservation(
        self,
        attributes: Attributes,
        *,
        cost: Cost | None = None,
        ttl: timedelta | None = None,
        policy: str | None = None,
        timeout: float = DEFAULT_WAIT,
    ) -> Reservation:
        """As `reserve`, but waits for its turn as `acquire` does."""
        job = Job.acquire_reservation(timeout, attributes, cost, policy, ttl)
        decision, ticket, lasts = await started(self._engine.start, job)
        return Reservation(decision, ticket, lasts, self._change)

    def acquire_reservation_sync(
        self,
        attributes: Attributes,
        *,
        cost: Cost | None = None,
        ttl: timedelta | None = None,
        policy: str | None = None,
        timeout: float = DEFAULT_WAIT,
    ) -> Reservation:
        decision, ticket, lasts = self._engine.run(Job.acquire_reservation(timeout, attributes, cost, policy, ttl))
        return Reservation(decision, ticket, lasts, self._change)

    def settle(self, ticket: str, cost: Cost) -> Settlement:
        """Settles by a ticket. `Reservation` has what it does, as for the following."""
        return self._change("settle", ticket, cost=cost)

    def settle_so_far(self, ticket: str, cost: Cost) -> Settlement:
        return self._change("settle_so_far", ticket, cost=cost)

    def extend(self, ticket: str, ttl: timedelta | None = None, *, hold: Cost | None = None) -> Settlement:
        return self._change("extend", ticket, ttl=ttl, hold=hold)

    def cancel(self, ticket: str) -> Settlement:
        return self._change("cancel", ticket)

    @property
    def waiting(self) -> int:
        """How many calls of this process wait for their turn."""
        return self._engine.waiting

    @property
    def _has_in_flight(self) -> bool:
        return self._engine.has_in_flight

    def _change(
        self,
        kind: str,
        ticket: str,
        *,
        cost: Cost | None = None,
        ttl: timedelta | None = None,
        hold: Cost | None = None,
    ) -> Settlement:
        return self._engine.run(Job.change(kind, ticket, cost, ttl, hold))


class SharedGate(Turns[Attributes]):
    """Policies whose usage all processes share in Redis, Sentinel or a cluster; also with programs in Rust and with
    the service.

    Calls are awaited; those that end in `_sync` block instead. A call that Redis does not answer within `deadline` is
    decided by each policy's `on_store_error`; `Decision.error` says so. No connection is made before the first call,
    and a process that was forked makes its own, so gates may be made when a server starts.
    """

    def __init__(
        self,
        url: str,
        policies: Policies,
        *,
        deadline: timedelta | None = None,
        connect_timeout: timedelta | None = None,
        connections: int | None = None,
        key_secret: str | None = None,
        hashed_keys: bool = False,
        hash_tag: str | None = None,
        ca_certificates: bytes | None = None,
        max_waiting: int | None = None,
        draft: str | None = None,
        x_ratelimit: str | None = None,
    ) -> None:
        if not hasattr(Engine, "shared"):
            raise InvalidRequest("unsupported", "this build of slidegate has no Redis: build it with feature `redis`")
        options = {
            "deadline": deadline,
            "connect_timeout": connect_timeout,
            "connections": connections,
            "key_secret": key_secret,
            "hashed_keys": hashed_keys,
            "hash_tag": hash_tag,
            "ca_certificates": ca_certificates,
        }
        self._engine = Engine.shared(url, *_text(policies), max_waiting, draft, x_ratelimit, options)

    @classmethod
    def from_file(cls, url: str, path: str | PathLike[str], **options: Any) -> SharedGate:
        """Policies of a file, such as the configuration of the service."""
        return cls(url, _file(path)[0], **options)

    async def check(
        self,
        attributes: Attributes,
        *,
        cost: Cost | None = None,
        policy: str | None = None,
        idempotency_key: str | None = None,
    ) -> Decision:
        """Decides a request, and charges it if it is allowed. If it is cancelled, it may have been charged."""
        return await self._start(Job.decide("check", attributes, cost, policy, idempotency_key))

    def check_sync(
        self,
        attributes: Attributes,
        *,
        cost: Cost | None = None,
        policy: str | None = None,
        idempotency_key: str | None = None,
    ) -> Decision:
        return self._engine.run(Job.decide("check", attributes, cost, policy, idempotency_key))

    async def acquire(
        self,
        attributes: Attributes,
        *,
        cost: Cost | None = None,
        policy: str | None = None,
        timeout: float = DEFAULT_WAIT,
    ) -> Decision:
        """Waits for its turn, and charges the cost: first come, first served for each key. It is denied if there is no
        turn within `timeout` seconds, as soon as that is certain. Cancelled, it leaves the queue and charges nothing."""
        return await started(self._engine.start, Job.acquire(timeout, attributes, cost, policy))

    def acquire_sync(
        self,
        attributes: Attributes,
        *,
        cost: Cost | None = None,
        policy: str | None = None,
        timeout: float = DEFAULT_WAIT,
    ) -> Decision:
        return self._engine.run(Job.acquire(timeout, attributes, cost, policy))

    async def peek(self, attributes: Attributes, *, cost: Cost | None = None, policy: str | None = None) -> Decision:
        """What `check` would say, without charging."""
        return await self._start(Job.decide("peek", attributes, cost, policy))

    def peek_sync(self, attributes: Attributes, *, cost: Cost | None = None, policy: str | None = None) -> Decision:
        return self._engine.run(Job.decide("peek", attributes, cost, policy))

    async def refund(self, attributes: Attributes, *, cost: Cost | None = None, policy: str | None = None) -> Decision:
        """Returns cost that was charged and still counts."""
        return await self._start(Job.decide("refund", attributes, cost, policy))

    def refund_sync(self, attributes: Attributes, *, cost: Cost | None = None, policy: str | None = None) -> Decision:
        return self._engine.run(Job.decide("refund", attributes, cost, policy))

    async def penalize(
        self, attributes: Attributes, *, cost: Cost | None = None, policy: str | None = None
    ) -> Decision:
        """Charges a cost even if it exceeds the limit."""
        return await self._start(Job.decide("penalize", attributes, cost, policy))

    def penalize_sync(
        self, attributes: Attributes, *, cost: Cost | None = None, policy: str | None = None
    ) -> Decision:
        return self._engine.run(Job.decide("penalize", attributes, cost, policy))

    async def reset(self, attributes: Attributes, *, policy: str | None = None) -> bool:
        """Forgets what the request's keys have used; returns whether there was anything."""
        return await self._start(Job.decide("reset", attributes, None, policy))

    def reset_sync(self, attributes: Attributes, *, policy: str | None = None) -> bool:
        return self._engine.run(Job.decide("reset", attributes, None, policy))

    def configure(self, policies: Policies) -> None:
        """Replaces the policies in this process. Usage stays with their names; on an error, nothing changes."""
        self._engine.configure(*_text(policies))

    async def reserve(
        self,
        attributes: Attributes,
        *,
        cost: Cost | None = None,
        ttl: timedelta | None = None,
        policy: str | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncReservation:
        """Decides a request, and holds its cost if it is allowed, for `ttl` (1 ms to 1 h) unless it is settled."""
        decision, ticket, lasts = await self._start(Job.reserve(attributes, cost, policy, idempotency_key, ttl))
        return AsyncReservation(decision, ticket, lasts, self._change)

    def reserve_sync(
        self,
        attributes: Attributes,
        *,
        cost: Cost | None = None,
        ttl: timedelta | None = None,
        policy: str | None = None,
        idempotency_key: str | None = None,
    ) -> Reservation:
        decision, ticket, lasts = self._engine.run(Job.reserve(attributes, cost, policy, idempotency_key, ttl))
        return Reservation(decision, ticket, lasts, self._change_sync)

    async def acquire_reservation(
        self,
        attributes: Attributes,
        *,
        cost: Cost | None = None,
        ttl: timedelta | None = None,
        policy: str | None = None,
        timeout: float = DEFAULT_WAIT,
    ) -> AsyncReservation:
        """As `reserve`, but waits for its turn as `acquire` does."""
        job = Job.acquire_reservation(timeout, attributes, cost, policy, ttl)
        decision, ticket, lasts = await started(self._engine.start, job)
        return AsyncReservation(decision, ticket, lasts, self._change)

    def acquire_reservation_sync(
        self,
        attributes: Attributes,
        *,
        cost: Cost | None = None,
        ttl: timedelta | None = None,
        policy: str | None = None,
        timeout: float = DEFAULT_WAIT,
    ) -> Reservation:
        decision, ticket, lasts = self._engine.run(Job.acquire_reservation(timeout, attributes, cost, policy, ttl))
        return Reservation(decision, ticket, lasts, self._change_sync)

    async def settle(self, ticket: str, cost: Cost) -> Settlement:
        """Settles by a ticket. `Reservation` has what it does, as for the following."""
        return await self._change("settle", ticket, cost=cost)

    def settle_sync(self, ticket: str, cost: Cost) -> Settlement:
        return self._change_sync("settle", ticket, cost=cost)

    async def settle_so_far(self, ticket: str, cost: Cost) -> Settlement:
        return await self._change("settle_so_far", ticket, cost=cost)

    def settle_so_far_sync(self, ticket: str, cost: Cost) -> Settlement:
        return self._change_sync("settle_so_far", ticket, cost=cost)

    async def extend(self, ticket: str, ttl: timedelta | None = None, *, hold: Cost | None = None) -> Settlement:
        return await self._change("extend", ticket, ttl=ttl, hold=hold)

    def extend_sync(self, ticket: str, ttl: timedelta | None = None, *, hold: Cost | None = None) -> Settlement:
        return self._change_sync("extend", ticket, ttl=ttl, hold=hold)

    async def cancel(self, ticket: str) -> Settlement:
        return await self._change("cancel", ticket)

    def cancel_sync(self, ticket: str) -> Settlement:
        return self._change_sync("cancel", ticket)

    @property
    def waiting(self) -> int:
        """How many calls of this process wait for their turn."""
        return self._engine.waiting

    @property
    def _has_in_flight(self) -> bool:
        return self._engine.has_in_flight

    async def _change(
        self,
        kind: str,
        ticket: str,
        *,
        cost: Cost | None = None,
        ttl: timedelta | None = None,
        hold: Cost | None = None,
    ) -> Settlement:
        return await self._start(Job.change(kind, ticket, cost, ttl, hold))

    def _change_sync(
        self,
        kind: str,
        ticket: str,
        *,
        cost: Cost | None = None,
        ttl: timedelta | None = None,
        hold: Cost | None = None,
    ) -> Settlement:
        return self._engine.run(Job.change(kind, ticket, cost, ttl, hold))

    async def _start(self, job: Job) -> Any:
        return await started(self._engine.start, job)


def _text(policies: Policies) -> tuple[str, str | None]:
    """YAML with the name that begins its errors, or JSON without one."""
    if isinstance(policies, str):
        return policies, "policies"
    try:
        return json.dumps({"policies": [dict(one) for one in policies]}), None
    except (TypeError, ValueError, RecursionError) as error:
        text = 'must be a list like [{"name": "per-user", "scope": ["user"], "quota": "100/1m"}], or YAML as text'
        raise InvalidRequest("invalid_policy", f"invalid policies ({error}): {text}") from None


def _file(path: str | PathLike[str]) -> tuple[str, str]:
    try:
        return Path(path).read_text(encoding="utf-8"), str(path)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest("invalid_policy", f"{path}: cannot be read: {error}") from error


async def started(start: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a call that the native part starts."""
    result = start(*arguments, _completions())
    return await result if asyncio.isfuture(result) else result


_of_thread = threading.local()


def _completions() -> Any:
    """The results of this thread's event loop. A process that was forked has its own."""
    loop = asyncio.get_running_loop()
    completions = getattr(_of_thread, "completions", None)
    if completions is None or not completions.is_of(loop):
        _of_thread.completions = completions = Completions(loop)
    return completions


atexit.register(shutdown)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=before_fork, after_in_parent=after_fork, after_in_child=after_fork)
