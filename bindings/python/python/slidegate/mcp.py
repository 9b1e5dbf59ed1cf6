"""A decorator for tools of MCP servers.

    @server.tool()
    @limited("10/1m")
    def search(query: str) -> str: ...

A model that calls too often reads why and for how long to wait, instead of the tool's result.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from ._middleware import Asked, Rule, require_async, require_sync
from .decision import Decision
from .errors import SlidegateError
from .reservation import Cost

__all__ = ["limited"]

F = TypeVar("F", bound=Callable[..., Any])


def limited(
    limit: Any,
    *,
    key: Callable[[Mapping[str, Any]], str] | None = None,
    attributes: Callable[[Mapping[str, Any]], Mapping[str, str]] | None = None,
    cost: Cost | Callable[[Mapping[str, Any]], Cost | None] | None = None,
    policy: str | None = None,
) -> Callable[[F], F]:
    """Limits a tool, which may be `async`. `limit` is that of `slidegate.asgi.RateLimit`.

    Functions get the tool's arguments by name. Without `key`, a `Limiter` counts all calls of the tool together; the
    others count by the attribute `tool` and those that `attributes` returns.
    """
    rule: Rule[Mapping[str, Any]] = Rule(limit)

    def decorate(function: F) -> F:
        name = function.__name__
        signature = inspect.signature(function)

        def asked(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Asked:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            given = bound.arguments
            return Asked(
                name if key is None else key(given),
                {"tool": name, **({} if attributes is None else attributes(given))},
                cost(given) if callable(cost) else cost,
                policy,
            )

        if inspect.iscoroutinefunction(function):
            require_async(rule.limit)

            @functools.wraps(function)
            async def call_async(*args: Any, **kwargs: Any) -> Any:
                _require(name, await rule.ask_async("check", asked(args, kwargs)))
                return await function(*args, **kwargs)

            return cast(F, call_async)
        require_sync(rule.limit)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            _require(name, rule.ask_sync("check", asked(args, kwargs)))
            return function(*args, **kwargs)

        return cast(F, call)

    return decorate


def _require(tool: str, decision: Decision) -> None:
    if not decision.allowed:
        raise _tool_error(_sentence(tool, decision))


def _sentence(tool: str, decision: Decision) -> str:
    after = decision.retry_after
    if after is None:
        return f"Rate limit of tool `{tool}`: this call is larger than its limit and never fits. Ask for less."
    seconds = max(1, math.ceil(after.total_seconds()))
    wait = "1 second" if seconds == 1 else f"{seconds} seconds"
    return f"Rate limit of tool `{tool}` reached. Wait {wait} before you call it again; do something else meanwhile."


def _tool_error(message: str) -> Exception:
    """The error that the SDK passes on to the model; it hides the text of others."""
    try:
        from mcp.server.mcpserver.exceptions import ToolError  # since 2.0
    except ImportError:
        try:
            from mcp.server.fastmcp.exceptions import ToolError  # type: ignore[import-not-found,no-redef]
        except ImportError:
            return SlidegateError("over_limit", message)
    return ToolError(message)
