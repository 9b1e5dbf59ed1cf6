"""The calls of the HTTP API, without the connection: what is sent, what an answer means, what is repeated.

A call is a generator. It yields an `Exchange`, or a `Pause` before it repeats one, and returns its result; the clients
for threads and for asyncio run the same ones.
"""

from __future__ import annotations

import json
import math
import random
import ssl
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

from .._middleware import seconds
from ..decision import Decision, PolicyDecision, wait
from ..errors import InvalidRequest, SlidegateError, error_of
from ..fields import http_date
from ..reservation import Cost, SettledPolicy, Settlement

__all__ = ["Calls", "Exchange", "Key", "Pause", "Reply", "Service"]

#: Seconds. A service nearby answers within 1 ms, and within 50 ms if its shared store is down.
DEFAULT_TIMEOUT = 0.1
#: Seconds for which the service waits at most.
MAX_WAIT = 60.0
#: Seconds for which a final settlement or a cancellation is repeated.
DEFAULT_SETTLE_TIMEOUT = 5.0
DEFAULT_MAX_CONNECTIONS = 64

MAX_BODY_BYTES = 64 * 1024  # the service's bounds
MAX_BATCH_BYTES = 256 * 1024
MAX_BATCH = 1000
MAX_ANSWER_BYTES = 1024 * 1024
MAX_BATCH_ANSWER_BYTES = 16 * 1024 * 1024

_PROBLEM_TYPES = "https://iana.org/assignments/http-problem-types#"


class Service(NamedTuple):
    """Where the service is."""

    host: str
    port: int
    #: The path of a Unix socket, instead of host and port.
    socket: str | None
    is_tls: bool
    prefix: str

    @classmethod
    def at(cls, url: str) -> Service:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        is_clean = not (parts.query or parts.fragment or "@" in parts.netloc or "\r" in url or "\n" in url)
        is_text = url.isascii() and url.isprintable() and " " not in url
        if parts.scheme == "unix" and not parts.netloc and parts.path and is_clean and url.isprintable():
            return cls("localhost", 0, parts.path, False, "")
        if parts.scheme in ("http", "https") and parts.hostname and is_clean and is_text:
            is_tls = parts.scheme == "https"
            return cls(parts.hostname, port or (443 if is_tls else 80), None, is_tls, parts.path.rstrip("/"))
        shown = url.rpartition("@")[2]  # what is before it may be a password
        raise InvalidRequest(
            "invalid_request",
            f"invalid URL of the service `{shown}`: must be like http://127.0.0.1:7979, https://host/prefix or "
            "unix:///path/to/socket; give a token as `token`",
        )

    @property
    def host_field(self) -> str:
        if self.socket:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"


@dataclass(frozen=True)
class Exchange:
    """One attempt to get one answer."""

    request: bytes
    max_answer: int
    #: By `time.monotonic`.
    deadline: float
    #: Whether the service waits before it answers. Those who wait take no connection from others.
    is_waiting: bool = False


@dataclass(frozen=True)
class Pause:
    seconds: float


class Reply(NamedTuple):
    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes


#: What a call does: `Exchange` is answered by a `Reply` or a thrown `SlidegateError`, `Pause` by `None`.
T = TypeVar("T")
Steps = Generator["Exchange | Pause", Any, T]


def _time_of(reply: Reply) -> float:
    """The service's time: this machine's, unless the field `Date`, which has whole seconds, says another."""
    now = time.time()
    dates = [http_date(value) for name, value in reply.headers if name.lower() == "date"]
    if len(dates) != 1 or dates[0] is None:
        return now
    sent = dates[0].timestamp()
    return min(max(now, sent), sent + 1)


@dataclass(frozen=True)
class Key:
    """The usage of one key under one policy."""

    policy: str
    key: str
    limit: int
    window: timedelta
    algorithm: str
    #: `used`, `held` and `remaining` have decimals under a policy that weighs costs.
    used: float
    held: float
    open_holds: int
    remaining: float
    #: Until cost 1 fits: `None` if it never does.
    retry_after: timedelta | None
    reset_after: timedelta
    #: Why cost 1 is denied now, if it is.
    reason: str | None


class Calls:
    """Builds the steps of each call."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None,
        timeout: float,
        settle_timeout: float,
        on_failure: Literal["allow", "deny"],
        tls: ssl.SSLContext | None,
        max_connections: int,
    ) -> None:
        self.service = Service.at(url)
        if on_failure not in ("allow", "deny"):
            raise _invalid(f"invalid on_failure `{on_failure}`: must be `allow` or `deny`")
        if not (timeout > 0 and settle_timeout > 0 and max_connections > 0):
            raise _invalid("invalid timeout or max_connections: must be above 0; leave them out for the defaults")
        if token is not None and not (token and token.isascii() and token.isprintable() and " " not in token):
            raise _invalid("invalid token: must be visible ASCII characters")
        self.timeout = timeout
        self.settle_timeout = settle_timeout
        self.max_connections = max_connections
        self.tls = (tls or ssl.create_default_context()) if self.service.is_tls else None
        self._on_failure = on_failure
        fields = [
            f"Host: {self.service.host_field}",
            "User-Agent: slidegate-python",
            "Content-Type: application/json",
        ]
        if token is not None:
            fields.append(f"Authorization: Bearer {token}")
        self._fields = "\r\n".join(fields)

    def decide(
        self,
        path: str,
        attributes: Mapping[str, str],
        cost: Cost | None,
        policy: str | None,
        idempotency_key: str | None = None,
        wait: float | None = None,
    ) -> Steps[Decision]:
        """A check, a peek or an acquisition, which always has a decision."""
        try:
            body = _request(attributes, cost, policy)
            if wait is not None:
                wait = min(seconds(wait), MAX_WAIT)
                body["timeout_ms"] = round(wait * 1000)
            reply = yield self._post(path, body, idempotency_key=idempotency_key, wait=wait)
            return _decision(reply)[0]
        except SlidegateError as error:
            return self._failed(error)

    def reserve(
        self,
        attributes: Mapping[str, str],
        cost: Cost | None,
        policy: str | None,
        ttl: timedelta | None,
        idempotency_key: str | None,
        wait: float | None = None,
    ) -> Steps[tuple[Decision, str | None, float]]:
        """A reservation: its decision, its ticket and the seconds that it lasts."""
        try:
            body = _request(attributes, cost, policy) | _ttl(ttl)
            extra = ""
            if wait is not None:
                # The field has whole seconds.
                wait = math.ceil(min(seconds(wait), MAX_WAIT))
                extra = f"Prefer: wait={wait}\r\n"
            reply = yield self._post("/v1/reserve", body, idempotency_key=idempotency_key, wait=wait, extra=extra)
            decision, members = _decision(reply)
        except SlidegateError as error:
            return self._failed(error), None, 0.0
        if not decision.allowed:
            return decision, None, 0.0
        ticket, until = members.get("ticket"), members.get("until_ms")
        if not isinstance(ticket, str) or not isinstance(until, int):
            return self._failed(_invalid_response(reply.status, "it has no ticket")), None, 0.0
        lasts = ttl.total_seconds() if ttl else max(0.003, until / 1000 - _time_of(reply))
        return decision, ticket, min(lasts, 3600.0)

    def batch(self, requests: Sequence[Mapping[str, Any]]) -> Steps[list[Decision]]:
        try:
            if len(requests) > MAX_BATCH:
                raise _invalid(f"{len(requests)} requests in a batch: must be at most {MAX_BATCH}; send several")
            bodies = []
            for one in requests:
                if unknown := set(one) - {"attributes", "cost", "policy"}:
                    text = f"unknown member `{min(map(str, unknown))}` of a request in a batch: must be `attributes`, "
                    raise _invalid(text + "`cost` or `policy`")
                bodies.append(_request(one.get("attributes", {}), one.get("cost"), one.get("policy")))
            if not bodies:
                return []
            reply = yield self._post("/v1/check/batch", {"requests": bodies}, is_batch=True)
            answers = _members(_answered(reply), reply.status).get("decisions")
            if not isinstance(answers, list) or len(answers) != len(bodies):
                raise _invalid_response(reply.status, "it has not one decision for each request")
            return [_decision_of(one, (), reply.status) for one in answers]
        except SlidegateError as error:
            return [self._failed(error) for _ in requests]

    def change(self, path: str, attributes: Mapping[str, str], cost: Cost | None, policy: str | None) -> Steps[Decision]:
        """A refund or a penalty, which only the service makes."""
        reply = yield self._post(path, _request(attributes, cost, policy))
        return _decision(reply)[0]

    def reset(self, attributes: Mapping[str, str], policy: str | None) -> Steps[bool]:
        reply = yield self._post("/v1/reset", _request(attributes, None, policy))
        existed = _members(_answered(reply), reply.status).get("existed")
        if not isinstance(existed, bool):
            raise _invalid_response(reply.status, "it has no member `existed`")
        return existed

    def inspect(self, policy: str, key: str) -> Steps[Key]:
        path = f"/v1/keys/{quote(_text(policy), safe='')}/{quote(_text(key), safe='')}"
        reply = yield self._exchange("GET", path, b"", "", MAX_ANSWER_BYTES, self.timeout)
        found = _members(_answered(reply), reply.status)
        try:
            return Key(
                policy=found["policy"],
                key=found["key"],
                limit=found["limit"],
                window=_ms(found["window_ms"]),
                algorithm=found["algorithm"],
                used=found["used"],
                held=found.get("held", 0),
                open_holds=found.get("open_holds", 0),
                remaining=found["remaining"],
                retry_after=None if found["retry_after_ms"] is None else _ms(found["retry_after_ms"]),
                reset_after=_ms(found["reset_after_ms"]),
                reason=found.get("reason"),
            )
        except (KeyError, TypeError):
            raise _invalid_response(reply.status, "the body is not the usage of a key") from None

    def change_ticket(
        self,
        kind: str,
        ticket: str,
        *,
        cost: Cost | None = None,
        ttl: timedelta | None = None,
        hold: Cost | None = None,
    ) -> Steps[Settlement]:
        """`settle`, `settle_so_far`, `extend` or `cancel`. The last change of a ticket is repeated until it is answered."""
        body: dict[str, Any] = {"ticket": _text(ticket)} | _ttl(ttl)
        if kind in ("settle", "settle_so_far"):
            body["cost"] = _cost(0 if cost is None else cost)
        if kind == "settle_so_far":
            body["final"] = False
        if hold is not None:
            body["hold"] = _cost(hold)
        path = f"/v1/{kind.removesuffix('_so_far')}"
        if kind in ("settle_so_far", "extend"):
            reply = yield self._post(path, body)
            return _settlement(reply)
        until = time.monotonic() + self.settle_timeout
        pause = 0.02
        while True:
            try:
                left = max(until - time.monotonic(), 0.001)
                reply = yield self._post(path, body, timeout=min(left, max(self.timeout, 0.5)))
                return _settlement(reply)
            except SlidegateError as error:
                if error.code not in ("timeout", "unavailable") and (error.status or 0) < 500:
                    raise
                wait_for = pause * random.uniform(0.5, 1.5)
                if time.monotonic() + wait_for >= until:
                    raise
            yield Pause(wait_for)
            pause = min(pause * 2, 0.5)

    def extend_all(self, tickets: Sequence[str], ttl: timedelta | None) -> Steps[list[Settlement]]:
        if not tickets:
            return []
        reply = yield self._post("/v1/extend", {"tickets": [_text(one) for one in tickets]} | _ttl(ttl))
        found = _members(_answered(reply), reply.status).get("reservations")
        if not isinstance(found, list) or len(found) != len(tickets):
            raise _invalid_response(reply.status, "it has not one settlement for each ticket")
        return [_settlement_of(one, reply.status) for one in found]

    def _post(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        idempotency_key: str | None = None,
        is_batch: bool = False,
        timeout: float | None = None,
        wait: float | None = None,
        extra: str = "",
    ) -> Exchange:
        data = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        most = MAX_BATCH_BYTES if is_batch else MAX_BODY_BYTES
        if len(data) > most:
            # The service would close the connection, which looks like an outage.
            raise _invalid(f"the request has {len(data)} bytes: must be at most {most}", field="attributes")
        if idempotency_key is not None:
            if not 0 < len(idempotency_key) <= 128 or not all("!" <= char <= "~" for char in idempotency_key):
                text = "invalid idempotency key: must be 1 to 128 visible ASCII characters"
                raise _invalid(text, field="Idempotency-Key")
            extra += f"Idempotency-Key: {idempotency_key}\r\n"
        most_read = MAX_BATCH_ANSWER_BYTES if is_batch else MAX_ANSWER_BYTES
        exchange = self._exchange("POST", path, data, extra, most_read, (timeout or self.timeout) + (wait or 0))
        return exchange if wait is None else replace(exchange, is_waiting=True)

    def _exchange(self, method: str, path: str, data: bytes, extra: str, most: int, timeout: float) -> Exchange:
        head = f"{method} {self.service.prefix}{path} HTTP/1.1\r\n{self._fields}\r\n{extra}"
        head += f"Content-Length: {len(data)}\r\n\r\n"
        return Exchange(head.encode("latin-1") + data, most, time.monotonic() + timeout)

    def _failed(self, error: SlidegateError) -> Decision:
        """The decision about a request that the service did not decide."""
        if error.code == "invalid_request":
            # Never let through: a client could lift its limit with a value that is rejected.
            is_clients = bool(error.field) and (error.field or "").startswith(("attributes", "Idempotency-Key"))
            status, title = (400, "Bad Request") if is_clients else (500, "Internal Server Error")
            detail = (
                "The request has a value that cannot be counted." if is_clients else "The request could not be counted."
            )
            problem = {"type": "about:blank", "title": title, "status": status, "detail": detail}
            return Decision(
                allowed=False, status=status, problem=problem, why=str(error), source="invalid", error=error
            )
        if self._on_failure == "allow":
            return Decision(allowed=True, why=str(error), source="fail_open", error=error)
        # At random, so that clients do not retry all at once.
        seconds = random.randint(1, 3)
        strictest = PolicyDecision(
            policy=None, key="", allowed=False, reason="store_unavailable", retry_after_us=seconds * 1_000_000
        )
        problem = {
            "type": _PROBLEM_TYPES + "temporary-reduced-capacity",
            "title": "Request cannot be satisfied due to temporary server capacity constraints",
            "status": 503,
            "detail": "The limits of this request cannot be checked at the moment.",
        }
        return Decision(
            allowed=False,
            strictest=strictest,
            status=503,
            problem=problem,
            why=str(error),
            source="fail_closed",
            headers=[("retry-after", str(seconds))],
            error=error,
        )


def _request(attributes: Mapping[str, str], cost: Cost | None, policy: str | None) -> dict[str, Any]:
    sent = {}
    if not isinstance(attributes, Mapping):
        raise _invalid(f"invalid attributes of type {type(attributes).__name__}: must be a mapping of texts to texts")
    for name, value in attributes.items():
        field = f"attributes.{name!s}" if isinstance(name, str) and name.isprintable() else "attributes"
        sent[_text(name, field)] = _text(value, field)
    body: dict[str, Any] = {"attributes": sent}
    if cost is not None:
        body["cost"] = _cost(cost)
    if policy is not None:
        body["policy"] = _text(policy)
    return body


def _text(value: object, field: str | None = None) -> str:
    """Text that JSON can carry: encoded in another way, different bytes would become one key."""
    if not isinstance(value, str):
        kind = type(value).__name__
        raise _invalid(f"invalid value of type {kind}: must be a text; write numbers as text", field=field)
    try:
        value.encode()
    except UnicodeEncodeError:
        text = "a value is not valid Unicode: encode it, for example as hex"
        raise _invalid(text, field=field and field.encode(errors="replace").decode()) from None
    return value


def _cost(cost: Cost) -> int | dict[str, int]:
    if isinstance(cost, Mapping):
        return {_text(name): _units(units) for name, units in cost.items()}
    return _units(cost)


def _units(units: object) -> int:
    if not isinstance(units, int) or isinstance(units, bool) or not 0 <= units < 2**53:
        shown = f"`{units}`" if isinstance(units, (int, float)) and abs(units) < 2**64 else type(units).__name__
        raise _invalid(f"invalid cost {shown}: must be a whole number from 0 to 9007199254740991")
    return units


def _ttl(ttl: timedelta | None) -> dict[str, str]:
    # Rounded up to milliseconds.
    return {} if ttl is None else {"ttl": f"{-(-ttl // timedelta(milliseconds=1))}ms"}


def _ms(milliseconds: object) -> timedelta:
    if not isinstance(milliseconds, int):
        raise TypeError
    return wait(milliseconds * 1000) or timedelta(0)


def _decision(reply: Reply) -> tuple[Decision, Mapping[str, Any]]:
    """A decision, and the members of its body. What is not one is an error."""
    if reply.status not in (200, 429, 503):
        raise _response_error(reply)
    try:
        members = _members(reply.body, reply.status)
        fields = [one for one in reply.headers if one[0] == "retry-after" or "ratelimit" in one[0]]
        return _decision_of(members, fields, reply.status), members
    except SlidegateError:
        if reply.status == 200:
            raise
        raise _response_error(reply) from None


def _decision_of(members: object, fields: Sequence[tuple[str, str]], status: int) -> Decision:
    if not isinstance(members, Mapping) or not isinstance(members.get("allowed"), bool):
        raise _invalid_response(status, "the body is not a decision")
    try:
        problem = None
        if not members["allowed"]:
            names = ("type", "title", "status", "detail", "violated-policies")
            problem = {name: members[name] for name in names if name in members}
        return Decision(
            allowed=members["allowed"],
            strictest=_policy_decision(members) if members.get("policy") is not None else None,
            policies=[_policy_decision(one) for one in members.get("policies", ())],
            why=members.get("why"),
            status=200 if members["allowed"] else int(members.get("status", 429)),
            headers=fields,
            problem=problem,
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _invalid_response(status, "the body is not a decision") from None


def _policy_decision(members: Mapping[str, Any]) -> PolicyDecision:
    retry_ms, window_ms = members.get("retry_after_ms", 0), members.get("window_ms")
    return PolicyDecision(
        policy=members["policy"],
        key=members.get("key") or "",
        allowed=members.get("allowed", True),
        enforced=members.get("enforced", True),
        limit=members["limit"],
        window=None if window_ms is None else timedelta(milliseconds=window_ms),
        used=members["used"],
        held=members.get("held", 0),
        remaining=members["remaining"],
        cost=members.get("cost", 0),
        retry_after_us=None if retry_ms is None else retry_ms * 1000,
        reset_after_us=members.get("reset_after_ms", 0) * 1000,
        reason=members.get("reason"),
        source=members.get("source"),
        block=members.get("block"),
    )


def _settlement(reply: Reply) -> Settlement:
    if reply.status in (200, 202, 429):
        try:
            return _settlement_of(_members(reply.body, reply.status), reply.status)
        except SlidegateError:
            if reply.status != 429:
                raise
    raise _response_error(reply)


def _settlement_of(members: object, status: int) -> Settlement:
    try:
        policies = [
            SettledPolicy(one["policy"], one["status"], _policy_decision(one))
            for one in members["policies"]  # type: ignore[index]
        ]
        return Settlement(members["outcome"], policies, members.get("ticket"), members.get("until_ms"))  # type: ignore[index,attr-defined]
    except (KeyError, TypeError, AttributeError):
        raise _invalid_response(status, "the body is not a settlement") from None


def _answered(reply: Reply) -> bytes:
    if reply.status != 200:
        raise _response_error(reply)
    return reply.body


def _members(body: bytes, status: int) -> Mapping[str, Any]:
    try:
        members = json.loads(body)
    except (ValueError, RecursionError):
        members = None
    if not isinstance(members, dict):
        raise _invalid_response(status, "the body is not the expected JSON; check the URL of the service")
    return members


def _response_error(reply: Reply) -> SlidegateError:
    """The error of a response that is not the answer to the call."""
    status = reply.status
    if status in (400, 413):
        code = "invalid_request"
    elif status in (401, 403, 429):
        code = "unauthorized"  # 429 without a decision is the answer to too many wrong tokens
    elif status == 404:
        code = "not_found"
    elif status == 408 or status >= 500:
        code = "unavailable"
    else:
        code = "invalid_response"
    text, field = "", None
    try:
        problem = _members(reply.body, status)
        text, field = str(problem["detail"])[:2000], problem.get("field")
    except (SlidegateError, KeyError):
        text = "not a response of slidegate; check the URL of the service"
    return error_of(code, f"{code} (status {status}): {text}", status=status, field=field and str(field))


def _invalid(message: str, *, field: str | None = None) -> SlidegateError:
    return InvalidRequest("invalid_request", message, field=field)


def _invalid_response(status: int, message: str) -> SlidegateError:
    return SlidegateError("invalid_response", f"invalid response of the service: {message}", status=status)
