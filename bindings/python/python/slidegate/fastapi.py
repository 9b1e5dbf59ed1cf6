"""A dependency for FastAPI, for limits of single routes and routers.

    @app.post("/login", dependencies=[Depends(rate_limit("5/1m"))])

For refunds by status and for reservations, use `slidegate.asgi.RateLimit`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import HTTPException, Request, Response

from ._middleware import Rule, ask_async, require_async
from .decision import Decision

__all__ = ["rate_limit"]


def rate_limit(limit: Any, **options: Any) -> Callable[[Request, Response], Awaitable[Decision]]:
    """A dependency that is the decision, and raises `HTTPException` for denied requests.

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
        decision: Decision = await ask_async(rule.limit, "check", asked)
        fields = dict(decision.headers)
        if not decision.allowed:
            detail = (decision.problem or {}).get("detail")
            raise HTTPException(decision.status, detail, {**fields, "cache-control": "no-store"})
        response.headers.update(fields)
        request.state.rate_limit = decision
        return decision

    # FastAPI evaluates annotations in the namespace of the function, which `rate_limit` has not.
    limited.__annotations__ = {"request": Request, "response": Response, "return": Decision}
    return limited
