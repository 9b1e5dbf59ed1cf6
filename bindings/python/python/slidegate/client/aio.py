"""The client for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, cast

from ..decision import Decision
from ..errors import SlidegateError
from ..reservation import AsyncReservation, Cost, Settlement
from ..waiting import DEFAULT_WAIT, Turns
from .calls import (
    DEFAULT_MAX_CONNECTIONS,
    DEFAULT_SETTLE_TIMEOUT,
    DEFAULT_TIMEOUT,
    Calls,
    Exchange,
    Key,
    Pause,
    Reply,
    Steps,
    T,
)
from .http import BadResponse, ResponseReader
from .sync import MAX_IDLE_SECONDS

__all__ = ["AsyncClient"]

_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class AsyncClient(Turns[Mapping[str, str]]):
    """As `Client`, for asyncio and uvloop. Its connections belong to the running event loop."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:7979",
        *,
        token: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        settle_timeout: float = DEFAULT_SETTLE_TIMEOUT,
        on_failure: Literal["allow", "deny"] = "allow",
        tls: ssl.SSLContext | None = None,
        max_connections: int = DEFAULT_MAX_CONNECTIONS,
    ) -> None:
        self._calls = Calls(
            url,
            token=token,
            timeout=timeout,
            settle_timeout=settle_timeout,
            on_failure=on_failure,
            tls=tls,
            max_connections=max_connections,
        )
        self._pool: _Pool | None = None

    async def check(
        self,
        attributes: Mapping[str, str],
        *,
        cost: Cost | None = None,
        policy: str | None = None,
        idempotency_key: str | None = None,
    ) -> Decision:
        """Decides a request, and charges it if it is allowed. If it is cancelled, it may have been charged."""
        return await self._run(
            self._calls.decide("/v1/check", attributes, cost, policy, idempotency_key)
        )

    async def acquire(
        self,
        attributes: Mapping[str, str],
        *,
        cost: Cost | None = None,
        policy: str | None = None,
        idempotency_key: str | None = None,
        timeout: float = DEFAULT_WAIT,
    ) -> Decision:
        """Cancelled, it loses its place in the queue."""
        return await self._run(self._calls.decide("/v1/acquire", attributes, cost, policy, idempotency_key, timeout))

    async def peek(
        self, attributes: Mapping[str, str], *, cost: Cost | None = None, policy: str | None = None
    ) -> Decision:
        return await self._run(self._calls.decide("/v1/peek", attributes, cost, policy))

    async def check_batch(self, requests: Sequence[Mapping[str, Any]]) -> list[Decision]:
        return await self._run(self._calls.batch(requests))

    async def refund(
        self, attributes: Mapping[str, str], *, cost: Cost | None = None, policy: str | None = None
    ) -> Decision:
        return await self._run(self._calls.change("/v1/refund", attributes, cost, policy))

    async def penalize(
        self, attributes: Mapping[str, str], *, cost: Cost | None = None, policy: str | None = None
    ) -> Decision:
        return await self._run(self._calls.change("/v1/penalize", attributes, cost, policy))

    async def reset(self, attributes: Mapping[str, str], *, policy: str | None = None) -> bool:
        return await self._run(self._calls.reset(attributes, policy))

    async def inspect(self, policy: str, key: str) -> Key:
        return await self._run(self._calls.inspect(policy, key))

    async def reserve(
        self,
        attributes: Mapping[str, str],
        *,
        cost: Cost | None = None,
        ttl: timedelta | None = None,
        policy: str | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncReservation:
        steps = self._calls.reserve(attributes, cost, policy, ttl, idempotency_key)
        decision, ticket, lasts = await self._run(steps)
        return AsyncReservation(decision, ticket, lasts, self._change)

    async def acquire_reservation(
        self,
        attributes: Mapping[str, str],
        *,
        cost: Cost | None = None,
        ttl: timedelta | None = None,
        policy: str | None = None,
        idempotency_key: str | None = None,
        timeout: float = DEFAULT_WAIT,
    ) -> AsyncReservation:
        """As `reserve`, but waits for its turn as `acquire` does, for whole seconds: `timeout` is rounded up."""
        steps = self._calls.reserve(attributes, cost, policy, ttl, idempotency_key, timeout)
        decision, ticket, lasts = await self._run(steps)
        return AsyncReservation(decision, ticket, lasts, self._change)

    async def settle(self, ticket: str, cost: Cost) -> Settlement:
        return await self._change("settle", ticket, cost=cost)

    async def settle_so_far(self, ticket: str, cost: Cost) -> Settlement:
        return await self._change("settle_so_far", ticket, cost=cost)

    async def extend(self, ticket: str, ttl: timedelta | None = None, *, hold: Cost | None = None) -> Settlement:
        return await self._change("extend", ticket, ttl=ttl, hold=hold)

    async def extend_all(self, tickets: Sequence[str], ttl: timedelta | None = None) -> list[Settlement]:
        return await self._run(self._calls.extend_all(tickets, ttl))

    async def cancel(self, ticket: str) -> Settlement:
        return await self._change("cancel", ticket)

    async def close(self) -> None:
        """Closes idle connections. The client remains usable."""
        if self._pool is not None and self._pool.is_of(asyncio.get_running_loop()):
            self._pool.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _change(
        self,
        kind: str,
        ticket: str,
        *,
        cost: Cost | None = None,
        ttl: timedelta | None = None,
        hold: Cost | None = None,
    ) -> Settlement:
        steps = self._calls.change_ticket(kind, ticket, cost=cost, ttl=ttl, hold=hold)
        return await self._run(steps)

    async def _run(self, steps: Steps[T]) -> T:
        answer: Reply | None = None
        error: SlidegateError | None = None
        while True:
            try:
                step = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as end:
                return cast(T, end.value)
            answer = error = None
            if isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
                continue
            try:
                left = max(0.0, step.deadline - time.monotonic())
                answer = await asyncio.wait_for(self._exchange(step), left)
            except (TimeoutError, asyncio.TimeoutError):
                error = SlidegateError("timeout", f"no answer of {self._calls.service.host_field} in time")
            except (OSError, BadResponse) as failure:
                error = SlidegateError("unavailable", f"{self._calls.service.host_field}: {failure}")

    async def _exchange(self, exchange: Exchange) -> Reply:
        loop = asyncio.get_running_loop()
        pool = self._pool
        if pool is None or not pool.is_of(loop):
            # Those of another loop are closed by it.
            self._pool = pool = _Pool(loop, self._calls.max_connections)
        async with contextlib.nullcontext() if exchange.is_waiting else pool.places:
            streams = pool.take() or await self._connect()
            received, sent = streams
            reader = ResponseReader(exchange.max_answer)
            try:
                sent.write(exchange.request)
                await sent.drain()
                while not reader.complete:
                    reader.feed(await received.read(65536))
            except BaseException:
                sent.transport.abort()
                raise
            if reader.reusable:
                pool.give(streams)
            else:
                sent.close()
            return Reply(reader.status, reader.headers, reader.body)

    async def _connect(self) -> _Streams:
        service = self._calls.service
        if service.socket is not None:
            return await asyncio.open_unix_connection(service.socket)
        return await asyncio.open_connection(service.host, service.port, ssl=self._calls.tls)


class _Pool:
    """Idle connections of one event loop, and a bound on all of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int) -> None:
        self._loop = loop
        self._pid = os.getpid()
        self._most = most
        self._idle: list[tuple[float, _Streams]] = []
        self.places = asyncio.Semaphore(most)

    def is_of(self, loop: asyncio.AbstractEventLoop) -> bool:
        return self._loop is loop and self._pid == os.getpid()

    def take(self) -> _Streams | None:
        while self._idle:
            since, streams = self._idle.pop()
            received, sent = streams
            is_alive = not received.at_eof() and not sent.transport.is_closing()
            if is_alive and time.monotonic() - since < MAX_IDLE_SECONDS:
                return streams
            sent.transport.abort()
        return None

    def give(self, streams: _Streams) -> None:
        if len(self._idle) < self._most:
            self._idle.append((time.monotonic(), streams))
        else:
            streams[1].close()  # of one that waited

    def close(self) -> None:
        _close(self._idle)

    def __del__(self) -> None:
        # Streams close when they are dropped, in whichever thread or process that is: only their loop's may.
        if not self._idle:
            return
        if self._pid != os.getpid():
            _OF_PARENTS.append(self._idle)
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed, and they with it
            self._loop.call_soon_threadsafe(_close, self._idle)


#: Connections of the process that forked this one. To close them would end its watch on them.
_OF_PARENTS: list[list[tuple[float, _Streams]]] = []


def _close(idle: list[tuple[float, _Streams]]) -> None:
    while idle:
        idle.pop()[1][1].close()
