"""What all middleware share: the request that is asked about, and one way to ask a limiter, a gate or a client."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from datetime import timedelta
from typing import Any, Generic, NamedTuple, TypeVar

from .decision import Decision
from .errors import InvalidRequest
from .reservation import Cost, awaited

R = TypeVar("R")
T = TypeVar("T")

#: Of ASGI.
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

#: The clients of a Unix socket, if no proxy says who they are, are limited together.
UNKNOWN = "unknown"


class Asked(NamedTuple):
    """A request as it is asked about."""

    #: For a `Limiter`, which counts by one key.
    key: str
    #: For everything else.
    attributes: Mapping[str, str]
    cost: Cost | None
    policy: str | None


class Rule(Generic[R]):
    """How a framework's request, `R`, becomes what is asked. The options of all middleware."""

    def __init__(
        self,
        limit: Any,
        *,
        key: Callable[[R], str] | None = None,
        attributes: Callable[[R], Mapping[str, str]] | None = None,
        cost: Cost | Callable[[R], Cost | None] | None = None,
        policy: str | None = None,
        skip: Callable[[R], bool] | None = None,
        refund: Callable[[int], bool] | None = None,
        trusted_proxies: Sequence[str] = (),
        client_header: str | None = None,
        ipv6_prefix: int | None = None,
        wait: float | None = None,
    ) -> None:
        if isinstance(limit, str):
            from . import Limiter

            limit = Limiter(limit)
        self.limit = limit
        self.refund = refund
        self._key = key
        self._attributes = attributes
        self._cost = cost
        self._policy = policy
        self._skip = skip
        self.wait = None if wait is None else seconds(wait)
        self._client = _client_rule(trusted_proxies, client_header, ipv6_prefix)
        #: The header, in lower case, that `asked` needs the lines of.
        self.client_header = self._client.header

    def skips(self, request: R) -> bool:
        return self._skip is not None and self._skip(request)

    def asked(self, request: R, *, peer: str | None, forwarded: Iterable[bytes], method: str, path: str) -> Asked:
        client = self._client.client(peer, list(forwarded))
        attributes = {"method": method, "path": clean_path(path)}
        # A peer without an address has no attribute that must be one.
        attributes["ip"] = client if client != UNKNOWN else "::"
        if self._attributes is not None:
            attributes.update(self._attributes(request))
        key = client if self._key is None else self._key(request)
        return Asked(key, attributes, self._cost(request) if callable(self._cost) else self._cost, self._policy)

    async def ask_async(self, verb: str, asked: Asked, inbox: Inbox | None = None) -> Any:
        """Calls `check`, `refund` and so on of whatever limits. `None` if it is to wait, and its client disconnects."""
        answer = call_async(self.limit, *self._call(verb, asked))
        return await (answer if inbox is None else inbox.unless_gone(answer))

    def ask_sync(self, verb: str, asked: Asked) -> Any:
        return call_sync(self.limit, *self._call(verb, asked))

    def _call(self, verb: str, asked: Asked) -> tuple[str, Any, dict[str, Any]]:
        options: dict[str, Any] = {} if asked.cost is None else {"cost": asked.cost}
        if self.wait is not None and verb in _WAITING:
            verb = _WAITING[verb]
            options["timeout"] = self.wait
        if hasattr(self.limit, "allows"):
            return verb, asked.key, options
        if asked.policy is not None:
            options["policy"] = asked.policy
        return verb, asked.attributes, options


#: What waits instead of being denied.
_WAITING = {"check": "acquire", "reserve": "acquire_reservation"}


def call(limit: Any, verb: str, of: Any, options: Mapping[str, Any]) -> Any:
    """The result of a shared gate and of an `AsyncClient`, and of whatever waits in an event loop, is awaitable."""
    try:
        method = getattr(limit, verb)
    except AttributeError:
        raise InvalidRequest("unsupported", f"a `{type(limit).__name__}` has no `{verb.removesuffix('_sync')}`") from None
    return method(of, **options)


async def call_async(limit: Any, verb: str, of: Any, options: Mapping[str, Any]) -> Any:
    return await awaited(call(limit, verb, of, options))


def call_sync(limit: Any, verb: str, of: Any, options: Mapping[str, Any]) -> Any:
    return call(limit, f"{verb}_sync" if hasattr(limit, f"{verb}_sync") else verb, of, options)


def seconds(value: float) -> float:
    """A time to wait."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        text = f"invalid time to wait of type {type(value).__name__}: must be seconds from 0, for example 2.5"
        raise InvalidRequest("invalid_request", text)
    return float(value)


def require_async(limit: Any) -> None:
    """A call that blocks would stop the whole event loop."""
    from .client import Client

    if isinstance(limit, Client):
        raise InvalidRequest("unsupported", "a `Client` blocks the event loop: use an `AsyncClient`")


def require_sync(limit: Any) -> None:
    from .client import AsyncClient

    if isinstance(limit, AsyncClient):
        raise InvalidRequest("unsupported", "an `AsyncClient` needs an event loop: use a `Client`")


class Inbox:
    """What an ASGI client sends while its request waits: it is kept for the application."""

    #: Bytes of a body that are kept. What follows stays with the server, which then cannot say that the client is gone.
    MAX_KEPT = 64 * 1024

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._kept: deque[Message] = deque()
        self._next: asyncio.Future[Message] | None = None

    async def receive(self) -> Message:
        """For the application, instead of that of the server."""
        if self._kept:
            return self._kept.popleft()
        pending, self._next = self._next, None
        return await (self._receive() if pending is None else pending)

    async def unless_gone(self, asked: Awaitable[T]) -> T | None:
        """The answer, or `None` if the client disconnects before it is there: the question is then cancelled."""
        answer, gone = asyncio.ensure_future(asked), asyncio.ensure_future(self._disconnect())
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            return await answer if answer.done() else gone.result()
        finally:
            answer.cancel()
            gone.cancel()

    async def _disconnect(self) -> None:
        kept = 0
        while kept < self.MAX_KEPT:
            self._next = asyncio.ensure_future(self._receive())
            # It goes on if this is cancelled: the application gets the message.
            message = await asyncio.shield(self._next)
            self._next = None
            if message["type"] == "http.disconnect":
                return
            self._kept.append(message)
            kept += len(message.get("body", b""))
        await asyncio.Event().wait()


class Refund:
    """Returns a charge, unless it no longer counts: that would return what later requests were charged."""

    def __init__(self, rule: Rule[Any], asked: Asked, decision: Decision) -> None:
        self._asked = asked
        self._decision = decision
        self._refund = rule.refund if decision.allowed and decision.error is None else None
        self._started = time.monotonic()

    def of(self, status: int) -> list[Asked]:
        """What is to be refunded for a response of this status. Only the first call returns anything."""
        refund, self._refund = self._refund, None
        if refund is None or not refund(status):
            return []
        # A key is unused after `reset_after`, unless more was charged since.
        elapsed = timedelta(seconds=time.monotonic() - self._started)
        policies = self._decision.policies
        if not policies:
            return [self._asked] if elapsed < self._decision.reset_after else []
        counting = [one.policy for one in policies if elapsed < one.reset_after]
        if len(counting) == len(policies):
            return [self._asked]
        return [self._asked._replace(policy=policy) for policy in counting]


def problem_body(decision: Decision) -> bytes:
    """The body for the client of a denied request."""
    return json.dumps(decision.problem, ensure_ascii=False).encode()


PROBLEM_HEADERS = (("content-type", "application/problem+json"), ("cache-control", "no-store"))


def clean_path(path: str) -> str:
    """The path as routers see it, so that `//login` and `/x/../login` are counted as `/login`."""
    kept: list[str] = []
    is_folder = False
    for segment in path.split("/"):
        is_folder = segment in ("", ".", "..")
        if segment == "..":
            del kept[-1:]
        elif not is_folder:
            kept.append(segment)
    return "/" + "/".join(kept) + ("/" if is_folder and kept else "")


class _Peer:
    """Without the native part, the client is the peer, and IPv6 clients are those of one network of 56 bits."""

    header = None

    def client(self, peer: str | None, _lines: list[bytes]) -> str:
        try:
            address = ipaddress.ip_address((peer or "").partition("%")[0])
        except ValueError:
            return UNKNOWN
        if isinstance(address, ipaddress.IPv4Address):
            return str(address)
        return str(address.ipv4_mapped or ipaddress.IPv6Network((address, 56), strict=False).network_address)


def _client_rule(trusted_proxies: Sequence[str], header: str | None, ipv6_prefix: int | None) -> Any:
    try:
        from ._slidegate import ClientRule
    except ImportError as error:
        if trusted_proxies or header or ipv6_prefix:
            raise InvalidRequest(
                "unsupported", "trusted_proxies, client_header and ipv6_prefix need the native part of slidegate"
            ) from error
        return _Peer()
    if isinstance(trusted_proxies, str):
        raise InvalidRequest("invalid_address", "trusted_proxies must be a list, for example ['10.0.0.0/8']")
    return ClientRule(list(trusted_proxies), header, ipv6_prefix)
