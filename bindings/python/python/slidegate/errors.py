"""Errors. All of them are `SlidegateError`, and `code` says which."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .decision import Decision

__all__ = ["InvalidRequest", "RateLimited", "SlidegateError", "error_of"]

_CALLERS = frozenset(
    {
        "invalid_address",
        "invalid_headers",
        "invalid_policy",
        "invalid_quota",
        "invalid_request",
        "invalid_ticket",
        "missing_attribute",
        "unknown_cost",
        "unknown_policy",
    }
)


class SlidegateError(Exception):
    """Why a call has no result.

    `code` is one of `invalid_quota`, `invalid_policy`, `invalid_request`, `unknown_policy`, `missing_attribute`,
    `unknown_cost`, `invalid_ticket`, `invalid_address`, `invalid_headers`, `unsupported`, `store`, `closed` and
    `internal`; of a client of the service also `timeout`, `unavailable`, `unauthorized`, `not_found` and
    `invalid_response`.
    """

    def __init__(self, code: str, message: str, *, status: int | None = None, field: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        #: Status of the service's response, if there was one.
        self.status = status
        #: The invalid member of the request, such as `attributes.ip`, if the service named one.
        self.field = field

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuilt, (type(self), self.code, str(self), self.status, self.field))


class InvalidRequest(SlidegateError, ValueError):
    """The caller gave something invalid and would get the same error again. Nothing was charged."""


class RateLimited(SlidegateError):
    """There was no turn in time. `code` is the reason of the denial, such as `over_limit` or `queue_full`."""

    def __init__(self, decision: Decision) -> None:
        code = decision.reason or (decision.error.code if decision.error else "over_limit")
        super().__init__(code, decision.why or "denied", status=decision.status)
        self.decision = decision
        #: The wait that would have been necessary; `None` if it never fits.
        self.retry_after = decision.retry_after

    def __reduce__(self) -> tuple[object, ...]:
        return (RateLimited, (self.decision,))


def error_of(code: str, message: str, *, status: int | None = None, field: str | None = None) -> SlidegateError:
    """The error of a code, in its class."""
    kind = InvalidRequest if code in _CALLERS else SlidegateError
    return kind(code, message, status=status, field=field)


def _rebuilt(
    kind: type[SlidegateError], code: str, message: str, status: int | None, field: str | None
) -> SlidegateError:
    return kind(code, message, status=status, field=field)
