"""A dependency for FastAPI, for limits of single routes and routers.

    @app.post("/login", dependencies=[Depends(rate_limit("5/1m"))])

For refunds by status and for reservations, use `slidegate.asgi.RateLimit`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import HTTPException, Request, Response

from ._middleware import PROBLEM_HEADERS, Inbox, Rule, problem_body, require_async
from .decision import Decision

__all__ = ["Denied", "problem", "rate_limit"]


class Denied(HTTPException):
    """A denied request. FastAPI answers it with `{"detail": ...}`, unless the application has a handler."""

    def __init__(self, decision: Decision) -> None:
        detail = (decision.problem or {}).get("detail")
        super().__init__(decision.status, detail, {**dict(decision.headers), "cache-control": "no-store"})
        self.decision = decision


async def problem(_: Request, denied: Any) -> Response:
    """The problem body: `app.add_exception_handler(Denied, problem)`."""
    fields = {**denied.headers, **dict(PROBLEM_HEADERS)}
    return Response(problem_body(denied.decision), denied.status_code, fields)


def rate_limit(limit: Any, **options: Any) -> Callable[[Request, Response], Awaitable[Decision]]:
    """A dependency that is the decision, and raises `Denied` for denied requests.

    `limit` and the options are those of `slidegate.asgi.RateLimit`; functions get the `Request`.
    """
    rule: Rule[Request] = Rule(limit, **options)
    require_async(rule.limit)

    async def limited(request: Request, response: Response) -> Decision:
        if rule.skips(request):
            return Decision(allowed=True, why="skipped")
        name = (rule.client_header or "").encode()
        asked = rule.asked(
            request,
            peer=request.client.host if request.client else None,
            forwarded=[value for field, value in request.headers.raw if field == name] if name else [],
            method=request.method,
            path=request.url.path,
        )
        inbox = None
        if rule.wait is not None:
            inbox = Inbox(request.receive)
            # The handler reads the body after this, from the same request.
            request._receive = inbox.receive
        decision: Decision | None = await rule.ask_async("check", asked, inbox)
        if decision is None:
            raise HTTPException(499, "The client has disconnected.")  # nobody gets it
        if not decision.allowed:
            raise Denied(decision)
        response.headers.update(dict(decision.headers))
        request.state.rate_limit = decision
        return decision

    # FastAPI evaluates annotations in the namespace of the function, which `rate_limit` has not.
    limited.__annotations__ = {"request": Request, "response": Response, "return": Decision}
    return limited
