"""Middleware for ASGI: Starlette, FastAPI, Quart, Litestar, Django's ASGI.

    app.add_middleware(RateLimit, limit="100/1m")

It wraps `send` and makes no task per request, except to wait and to keep a reservation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from ._middleware import PROBLEM_HEADERS, Asked, Inbox, Receive, Refund, Rule, problem_body, require_async
from .decision import Decision
from .errors import SlidegateError
from .reservation import AsyncReservation, Cost, Reservation, awaited, keep

__all__ = ["RateLimit"]

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class RateLimit:
    """Checks every HTTP request before the application, and adds the fields of the decision to its response.

    `limit` is a quota such as `"100/1m"`, a `Limiter`, a `Gate`, a `SharedGate` or an `AsyncClient`. Functions among
    the options get the scope. A `Limiter` counts by `key`, by default the address of the client; the others by the
    attributes `ip`, `method` and `path`, and those that `attributes` adds or replaces. `trusted_proxies` are those
    whose `X-Forwarded-For` is believed: addresses, networks, `loopback`, `private`.

    `denied` is an ASGI application that answers denied requests; by default they get a problem body. `refund` says
    for which statuses the charge is returned, before the response is sent. `reserve` returns the most that a request
    may cost, which is held instead of charged: what the application has recorded in
    `scope["state"]["reservation"].record(cost)` is settled in parts every second, and at the end; what it held, if
    nothing was recorded. With `wait`, requests wait for their turn up to so many seconds before they are denied; a
    client that disconnects meanwhile loses its place.

    The application finds the decision in `scope["state"]["rate_limit"]`.
    """

    def __init__(
        self,
        app: App,
        limit: Any,
        *,
        denied: App | None = None,
        reserve: Callable[[Scope], Cost] | None = None,
        **options: Any,
    ) -> None:
        self._app = app
        self._rule: Rule[Scope] = Rule(limit, **options)
        self._denied = denied
        self._reserve = reserve
        require_async(self._rule.limit)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._rule.skips(scope):
            await self._app(scope, receive, send)
            return
        asked = self._asked(scope)
        inbox = None
        if self._rule.wait is not None:
            inbox = Inbox(receive)
            receive = inbox.receive
        if self._reserve is None:
            decision = await self._rule.ask_async("check", asked, inbox)
            if decision is not None:
                await self._respond(scope, receive, send, decision, Refund(self._rule, asked, decision))
            return
        asked = asked._replace(cost=self._reserve(scope))
        reservation = await self._rule.ask_async("reserve", asked, inbox)
        if reservation is None:
            return
        scope.setdefault("state", {})["reservation"] = reservation
        await self._respond_reserved(scope, receive, send, asked, reservation)

    def _asked(self, scope: Scope) -> Asked:
        name = (self._rule.client_header or "").encode()
        forwarded = [value for field, value in scope["headers"] if field == name] if name else []
        peer = scope.get("client")
        return self._rule.asked(
            scope,
            peer=peer[0] if peer else None,
            forwarded=forwarded,
            method=scope["method"],
            path=scope["path"],
        )

    async def _respond(
        self, scope: Scope, receive: Receive, send: Send, decision: Decision, refund: Refund | None = None
    ) -> int | None:
        """Lets the application respond, or denies. Returns the status that was sent."""
        scope.setdefault("state", {})["rate_limit"] = decision
        fields = [(name.encode(), value.encode("latin-1")) for name, value in decision.headers]
        sent: int | None = None

        async def send_with_fields(message: MutableMapping[str, Any]) -> None:
            nonlocal sent
            if message["type"] == "http.response.start":
                sent = message["status"]
                own = {name.lower() for name, _ in message.get("headers", ())}
                added = [field for field in fields if field[0] not in own]
                message = {**message, "headers": [*message.get("headers", ()), *added]}
                await self._give_back(refund, message["status"])
            await send(message)

        if not decision.allowed:
            await (self._denied or _deny(decision))(scope, receive, send_with_fields)
            return sent
        try:
            await self._app(scope, receive, send_with_fields)
        except Exception:
            await self._give_back(refund, 500)
            raise
        return sent

    async def _give_back(self, refund: Refund | None, status: int) -> None:
        for one in refund.of(status) if refund else ():
            try:
                await self._rule.ask_async("refund", one)
            except SlidegateError:
                pass  # the charge stays

    async def _respond_reserved(
        self, scope: Scope, receive: Receive, send: Send, asked: Asked, reservation: Reservation | AsyncReservation
    ) -> None:
        status: int | None = 500
        keeper = asyncio.ensure_future(keep(reservation)) if reservation.is_open else None
        try:
            status = await self._respond(scope, receive, send, reservation.decision)
        finally:
            if keeper is not None:
                keeper.cancel()
                refund = self._rule.refund
                is_refunded = refund is not None and status is not None and refund(status)
                # In a task of its own: this one may have been cancelled, as the client is gone.
                await asyncio.shield(_in_background(_settle(reservation, asked.cost, is_refunded)))


def _deny(decision: Decision) -> App:
    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        body = problem_body(decision)
        headers = [(name.encode(), value.encode()) for name, value in PROBLEM_HEADERS]
        headers.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": decision.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return respond


async def _settle(reservation: Reservation | AsyncReservation, reserved: Cost | None, is_refunded: bool) -> None:
    try:
        if is_refunded:
            await awaited(reservation.cancel())
        else:
            recorded = reservation.recorded
            await awaited(reservation.settle((reserved or 0) if recorded is None else recorded))
    except SlidegateError:
        pass  # it ends by its time


#: A loop has weak references to its tasks only.
_RUNNING: set[asyncio.Future[None]] = set()


def _in_background(work: Awaitable[None]) -> asyncio.Future[None]:
    task = asyncio.ensure_future(work)
    _RUNNING.add(task)
    task.add_done_callback(_RUNNING.discard)
    return task
