"""Decisions: the answer to one request.

A `Limiter` returns a native class with the same attributes, which counts as a `Decision` for `isinstance`.
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from .errors import SlidegateError

__all__ = ["Decision", "PolicyDecision", "decision_of", "policy_decision_of", "wait"]

_MAX_WAIT = timedelta.max // timedelta(microseconds=1)


def wait(microseconds: int | None) -> timedelta | None:
    """A wait, or `None` for never. What `timedelta` cannot hold is its maximum."""
    return None if microseconds is None else timedelta(microseconds=min(microseconds, _MAX_WAIT))


class PolicyDecision:
    """The decision of one policy. Numbers are in units of cost.

    Of a client of the service, `used`, `held`, `remaining` and `cost` have decimals under a policy that weighs costs.
    """

    __slots__ = (
        "policy", "key", "allowed", "enforced", "limit", "used", "held", "remaining", "cost",
        "window", "reason", "source", "block", "_retry_after_us", "_reset_after_us",
    )  # fmt: skip

    policy: str | None
    #: The values of the policy's scope, joined by commas.
    key: str
    allowed: bool
    #: False for a shadow policy, whose denials deny nothing.
    enforced: bool
    limit: int
    #: The window, or the lease of a permit. `None` after a change to a reservation.
    window: timedelta | None
    used: float
    #: What open reservations hold. `remaining` is without it.
    held: float
    remaining: float
    #: What this call charged or refunded.
    cost: float
    #: `over_limit`, `queue_full`, `blocked`, `too_many_holds`, `store_full` or `store_unavailable`; `None` if it is allowed.
    reason: str | None
    #: `store`, `cached`, `leased`, `local`, `allow` or `deny`.
    source: str | None
    #: An operator's block of the key: `until` and `by`.
    block: Mapping[str, Any] | None

    def __init__(
        self,
        *,
        policy: str | None,
        key: str,
        allowed: bool,
        enforced: bool = True,
        limit: int = 0,
        window: timedelta | None = None,
        used: float = 0,
        held: float = 0,
        remaining: float = 0,
        cost: float = 0,
        retry_after_us: int | None = 0,
        reset_after_us: int = 0,
        reason: str | None = None,
        source: str | None = None,
        block: Mapping[str, Any] | None = None,
    ) -> None:
        self.policy = policy
        self.key = key
        self.allowed = allowed
        self.enforced = enforced
        self.limit = limit
        self.window = window
        self.used = used
        self.held = held
        self.remaining = remaining
        self.cost = cost
        self.reason = reason
        self.source = source
        self.block = block
        self._retry_after_us = retry_after_us
        self._reset_after_us = reset_after_us

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def retry_after(self) -> timedelta | None:
        """Wait until the same cost fits: zero if it was allowed, `None` if it never fits."""
        return wait(self._retry_after_us)

    @property
    def reset_after(self) -> timedelta:
        """Wait until the key is unused, if nothing more is charged."""
        return wait(self._reset_after_us) or timedelta(0)

    def __repr__(self) -> str:
        return (
            f"<PolicyDecision {self.policy}: {'allowed' if self.allowed else 'denied'}, "
            f"used {self.used} of {self.limit}, {self.remaining} remain>"
        )


class Decision(metaclass=ABCMeta):
    """The answer to one request; true if it is allowed.

    `limit`, `used`, `remaining` and so on are those of the strictest policy. They are 0, and `policy` is `None`, if no
    policy applies, or if a client decided because the service did not: `error` then says why.
    """

    __slots__ = ("allowed", "policies", "why", "status", "headers", "problem", "source", "error", "_strictest")

    allowed: bool
    #: The decisions of all policies that apply.
    policies: Sequence[PolicyDecision]
    #: The decision in a sentence for operators; it may name tokens and stores. Clients get `problem["detail"]`.
    why: str | None
    #: 200, 429 or 503; 400 or 500 if a client of the service denies a request that cannot be counted.
    status: int
    #: Fields for the response: `RateLimit`, `RateLimit-Policy`, `X-RateLimit-...` and `Retry-After`.
    headers: Sequence[tuple[str, str]]
    #: The body for the client of a denied request (RFC 9457), otherwise `None`.
    problem: Mapping[str, Any] | None
    #: That of the strictest policy; of a client also `fail_open`, `fail_closed` and `invalid`.
    source: str | None
    #: Why a client decided without the service, or why a gate used a fallback of its store.
    error: SlidegateError | None

    def __init__(
        self,
        *,
        allowed: bool,
        strictest: PolicyDecision | None = None,
        policies: Sequence[PolicyDecision] = (),
        why: str | None = None,
        status: int = 200,
        headers: Sequence[tuple[str, str]] = (),
        problem: Mapping[str, Any] | None = None,
        source: str | None = None,
        error: SlidegateError | None = None,
    ) -> None:
        if strictest is None:
            strictest = PolicyDecision(policy=None, key="", allowed=allowed)
        self._strictest = strictest
        self.allowed = allowed
        self.policies = policies
        self.why = why
        self.status = status
        self.headers = headers
        self.problem = problem
        self.source = source or strictest.source
        self.error = error

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def policy(self) -> str | None:
        return self._strictest.policy

    @property
    def key(self) -> str:
        return self._strictest.key

    @property
    def limit(self) -> int:
        return self._strictest.limit

    @property
    def used(self) -> float:
        return self._strictest.used

    @property
    def held(self) -> float:
        """What open reservations hold. `remaining` is without it."""
        return self._strictest.held

    @property
    def remaining(self) -> float:
        return self._strictest.remaining

    @property
    def cost(self) -> float:
        """What this call charged or refunded."""
        return self._strictest.cost

    @property
    def reason(self) -> str | None:
        """Why it is denied: `over_limit`, `queue_full`, `blocked`, `too_many_holds`, `store_full` or `store_unavailable`."""
        return self._strictest.reason

    @property
    def block(self) -> Mapping[str, Any] | None:
        """An operator's block of the key: `until` and `by`."""
        return self._strictest.block

    @property
    def retry_after(self) -> timedelta | None:
        """Wait until the same cost fits: zero if it was allowed, `None` if it never fits."""
        return self._strictest.retry_after

    @property
    def reset_after(self) -> timedelta:
        """Wait until the key is unused, if nothing more is charged."""
        return self._strictest.reset_after

    def __repr__(self) -> str:
        verdict = "allowed" if self.allowed else "denied"
        if self.policy is None:
            return f"<Decision {verdict}: {self.why or 'no policy applies'}>"
        return f"<Decision {verdict}: {self.policy} used {self.used} of {self.limit}, {self.remaining} remain>"


#: How the native part passes the decision of one policy.
Numbers = tuple[
    tuple[str, str, bool, bool],
    tuple[int, int, int, int, int],
    tuple[int | None, int | None, int, str | None, str | None],
]


def policy_decision_of(numbers: Numbers) -> PolicyDecision:
    (policy, key, allowed, enforced), (limit, used, held, remaining, cost), (window_us, retry_us, reset_us, reason, source) = numbers
    return PolicyDecision(
        policy=policy,
        key=key,
        allowed=allowed,
        enforced=enforced,
        limit=limit,
        window=wait(window_us),
        used=used,
        held=held,
        remaining=remaining,
        cost=cost,
        retry_after_us=retry_us,
        reset_after_us=reset_us,
        reason=reason,
        source=source,
    )


def decision_of(
    allowed: bool,
    status: int,
    why: str | None,
    policies: list[Numbers],
    strictest: int | None,
    headers: list[tuple[str, str]],
    store_failure: str | None,
) -> Decision:
    """The decision of a gate, from the native part. `why` is for the client of a denied request."""
    decisions = [policy_decision_of(one) for one in policies]
    return Decision(
        allowed=allowed,
        strictest=None if strictest is None else decisions[strictest],
        policies=decisions,
        why=why,
        status=status,
        headers=headers,
        problem=None if allowed else _problem(status, why, decisions),
        error=None if store_failure is None else SlidegateError("store", store_failure),
    )


_PROBLEM_TYPES = "https://iana.org/assignments/http-problem-types#"


def _problem(status: int, detail: str | None, policies: list[PolicyDecision]) -> dict[str, Any]:
    """The body that the service would send."""
    denying = [one for one in policies if one.enforced and not one.allowed]
    if status == 503:
        kind, title = "temporary-reduced-capacity", "Request cannot be satisfied due to temporary server capacity constraints"
    elif any(one.reason == "blocked" for one in denying):
        kind, title = "abnormal-usage-detected", "Request not satisfied due to detection of abnormal request pattern"
    else:
        kind, title = "quota-exceeded", "Request cannot be satisfied as assigned quota has been exceeded"
    return {
        "type": _PROBLEM_TYPES + kind,
        "title": title,
        "status": status,
        "detail": detail,
        "violated-policies": [one.policy for one in denying],
    }
