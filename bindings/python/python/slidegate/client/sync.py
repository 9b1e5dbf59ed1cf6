"""The client for threads."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, cast

from ..decision import Decision
from ..errors import SlidegateError
from ..reservation import Cost, Reservation, Settlement
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

__all__ = ["Client"]

#: The service closes connections that are idle for 75 s.
MAX_IDLE_SECONDS = 30.0


class Client(Turns[Mapping[str, str]]):
    """Calls one slidegate service, or a load balancer in front of several. Threads may share it, and it may be forked.

    `url` is `http://127.0.0.1:7979`, `https://host/prefix` or `unix:///path/to/socket`. `token` goes to that host only:
    redirects are not followed, and proxies of the environment are not used. `timeout` is seconds for a call in all,
    connecting included. Final settlements and cancellations, which are safe to repeat, are repeated for
    `settle_timeout`. `on_failure` decides while the service is unreachable, late, answers with an error or refuses the
    token. Requests that it rejects as invalid are always denied.
    """

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
        self._pool = _Pool(max_connections)

    def check(
        self,
        attributes: Mapping[str, str],
        *,
        cost: Cost | None = None,
        policy: str | None = None,
        idempotency_key: str | None = None,
    ) -> Decision:
        """Decides a request, and charges it if it is allowed."""
        return self._run(self._calls.decide("/v1/check", attributes, cost, policy, idempotency_key))

    def acquire(
        self,
        attributes: Mapping[str, str],
        *,
        cost: Cost | None = None,
        policy: str | None = None,
        idempotency_key: str | None = None,
        timeout: float = DEFAULT_WAIT,
    ) -> Decision:
        """As `check`, but waits for its turn up to `timeout` seconds, at most 60: first come, first served for each
        key. It is denied if there is no turn in time, as soon as that is certain, and charged only if it is allowed."""
        return self._run(self._calls.decide("/v1/acquire", attributes, cost, policy, idempotency_key, timeout))

    def peek(self, attributes: Mapping[str, str], *, cost: Cost | None = None, policy: str | None = None) -> Decision:
        """Decides a request without charging it."""
        return self._run(self._calls.decide("/v1/peek", attributes, cost, policy))

    def check_batch(self, requests: Sequence[Mapping[str, Any]]) -> list[Decision]:
        """Decides up to 1000 requests, one after the other, in one call: mappings with `attributes`, `cost`, `policy`.

        If one is invalid, none is decided. Their decisions have no header fields.
        """
        return self._run(self._calls.batch(requests))

    def refund(self, attributes: Mapping[str, str], *, cost: Cost | None = None, policy: str | None = None) -> Decision:
        """Returns cost that was charged and still counts. Raises `SlidegateError`. Repeated, it refunds again."""
        return self._run(self._calls.change("/v1/refund", attributes, cost, policy))

    def penalize(
        self, attributes: Mapping[str, str], *, cost: Cost | None = None, policy: str | None = None
    ) -> Decision:
        """Charges a cost even if it exceeds the limit."""
        return self._run(self._calls.change("/v1/penalize", attributes, cost, policy))

    def reset(self, attributes: Mapping[str, str], *, policy: str | None = None) -> bool:
        """Clears the usage of the request's keys; returns whether there was any."""
        return self._run(self._calls.reset(attributes, policy))

    def inspect(self, policy: str, key: str) -> Key:
        """The usage of a key, as decisions print it."""
        return self._run(self._calls.inspect(policy, key))

    def reserve(
        self,
        attributes: Mapping[str, str],
        *,
        cost: Cost | None = None,
        ttl: timedelta | None = None,
        policy: str | None = None,
        idempotency_key: str | None = None,
    ) -> Reservation:
        """Decides a request, and holds its cost if it is allowed, for `ttl` unless it is settled or extended."""
        decision, ticket, lasts = self._run(self._calls.reserve(attributes, cost, policy, ttl, idempotency_key))
        return Reservation(decision, ticket, lasts, self._change)

    def acquire_reservation(
        self,
        attributes: Mapping[str, str],
        *,
        cost: Cost | None = None,
        ttl: timedelta | None = None,
        policy: str | None = None,
        idempotency_key: str | None = None,
        timeout: float = DEFAULT_WAIT,
    ) -> Reservation:
        """As `reserve`, but waits for its turn as `acquire` does, for whole seconds: `timeout` is rounded up."""
        steps = self._calls.reserve(attributes, cost, policy, ttl, idempotency_key, timeout)
        decision, ticket, lasts = self._run(steps)
        return Reservation(decision, ticket, lasts, self._change)

    def settle(self, ticket: str, cost: Cost) -> Settlement:
        """Settles by a ticket. `Reservation` has what it does, as for the following."""
        return self._change("settle", ticket, cost=cost)

    def settle_so_far(self, ticket: str, cost: Cost) -> Settlement:
        return self._change("settle_so_far", ticket, cost=cost)

    def extend(self, ticket: str, ttl: timedelta | None = None, *, hold: Cost | None = None) -> Settlement:
        return self._change("extend", ticket, ttl=ttl, hold=hold)

    def extend_all(self, tickets: Sequence[str], ttl: timedelta | None = None) -> list[Settlement]:
        """Extends up to 256 reservations in one call, for example all that a process has open."""
        return self._run(self._calls.extend_all(tickets, ttl))

    def cancel(self, ticket: str) -> Settlement:
        return self._change("cancel", ticket)

    def close(self) -> None:
        """Closes idle connections. The client remains usable."""
        self._pool.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _change(
        self,
        kind: str,
        ticket: str,
        *,
        cost: Cost | None = None,
        ttl: timedelta | None = None,
        hold: Cost | None = None,
    ) -> Settlement:
        return self._run(self._calls.change_ticket(kind, ticket, cost=cost, ttl=ttl, hold=hold))

    def _run(self, steps: Steps[T]) -> T:
        answer: Reply | None = None
        error: SlidegateError | None = None
        while True:
            try:
                step = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as end:
                return cast(T, end.value)
            answer = error = None
            if isinstance(step, Pause):
                time.sleep(step.seconds)
                continue
            try:
                answer = self._exchange(step)
            except TimeoutError:
                error = SlidegateError("timeout", f"no answer of {self._calls.service.host_field} in time")
            except (OSError, BadResponse) as failure:
                error = SlidegateError("unavailable", f"{self._calls.service.host_field}: {failure}")

    def _exchange(self, exchange: Exchange) -> Reply:
        with self._pool.place(exchange):
            connection = self._pool.take() or self._connect(exchange.deadline)
            reader = ResponseReader(exchange.max_answer)
            try:
                connection.settimeout(_left(exchange.deadline))
                connection.sendall(exchange.request)
                while not reader.complete:
                    connection.settimeout(_left(exchange.deadline))
                    reader.feed(connection.recv(65536))
            except BaseException:
                connection.close()
                raise
            if reader.reusable:
                self._pool.give(connection)
            else:
                connection.close()
            return Reply(reader.status, reader.headers, reader.body)

    def _connect(self, deadline: float) -> socket.socket:
        service = self._calls.service
        if service.socket is not None:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.settimeout(_left(deadline))
                connection.connect(service.socket)
            except BaseException:
                connection.close()
                raise
            return connection
        connection = socket.create_connection((service.host, service.port), _left(deadline))
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._calls.tls is not None:
                connection.settimeout(_left(deadline))
                connection = self._calls.tls.wrap_socket(connection, server_hostname=service.host)
        except BaseException:
            connection.close()
            raise
        return connection


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


class _Pool:
    """Idle connections, and a bound on all of them. A forked process starts with none: its parent uses those."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._idle: deque[tuple[float, socket.socket]] = deque()
        self._places = threading.BoundedSemaphore(self._most)

    def place(self, exchange: Exchange) -> contextlib.AbstractContextManager[None]:
        if self._pid != os.getpid():
            for _, connection in self._idle:
                _detach(connection)
            self._start()
        if exchange.is_waiting:
            return contextlib.nullcontext()
        if not self._places.acquire(timeout=_left(exchange.deadline)):
            raise TimeoutError
        return _Place(self._places)

    def take(self) -> socket.socket | None:
        """The connection that was used last, unless the service has closed it."""
        while self._idle:
            try:
                since, connection = self._idle.pop()
            except IndexError:
                return None
            if time.monotonic() - since < MAX_IDLE_SECONDS and not _is_readable(connection):
                return connection
            connection.close()
        return None

    def give(self, connection: socket.socket) -> None:
        if len(self._idle) < self._most:
            self._idle.append((time.monotonic(), connection))
        else:
            connection.close()  # of one that waited

    def close(self) -> None:
        while self._idle:
            self._idle.pop()[1].close()


class _Place:
    def __init__(self, places: threading.BoundedSemaphore) -> None:
        self._places = places

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._places.release()


def _is_readable(connection: socket.socket) -> bool:
    """Whether an idle connection has something to read: its end, or what nobody asked for."""
    try:
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        return bool(poll.poll(0))
    except AttributeError:  # Windows
        return bool(select.select([connection], [], [], 0)[0])
    except (OSError, ValueError):
        return True


def _detach(connection: socket.socket) -> None:
    """Closes the file only: nothing is said on the connection, which is the parent's."""
    os.close(connection.detach())
