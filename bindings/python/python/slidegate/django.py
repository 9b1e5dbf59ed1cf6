"""Middleware for Django, synchronous and asynchronous. For Django REST framework, see `slidegate.drf`.

    MIDDLEWARE = ["slidegate.django.RateLimit", ...]
    SLIDEGATE = {"limit": "100/1m"}
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from ._middleware import Asked, Refund, Rule, problem_body, require_async
from .decision import Decision
from .errors import InvalidRequest, SlidegateError

__all__ = ["RateLimit", "asked_of", "rule_of"]


class RateLimit:
    """Checks every request, and adds the fields of the decision to its response.

    `settings.SLIDEGATE` is a dictionary with `limit` and the options of `slidegate.asgi.RateLimit`, except `reserve`;
    functions get the `HttpRequest`. `denied` is a function of the request and the decision that returns a response.
    Views find the decision in `request.rate_limit`.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self._get_response = get_response
        options = dict(settings_of())
        self._denied = options.pop("denied", _deny)
        self._rule = rule_of(options)
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            require_async(self._rule.limit)
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if self._is_async:
            return self._respond_async(request)
        if self._rule.skips(request):
            return self._get_response(request)
        asked = asked_of(self._rule, request)
        decision: Decision = self._rule.ask_sync("check", asked)
        request.rate_limit = decision
        refund = Refund(self._rule, asked, decision)
        response = self._get_response(request) if decision.allowed else self._denied(request, decision)
        for one in refund.of(response.status_code):
            try:
                self._rule.ask_sync("refund", one)
            except SlidegateError:
                pass  # the charge stays
        return _with_fields(response, decision)

    async def _respond_async(self, request: HttpRequest) -> HttpResponseBase:
        if self._rule.skips(request):
            return await self._get_response(request)
        asked = asked_of(self._rule, request)
        decision: Decision = await self._rule.ask_async("check", asked)
        request.rate_limit = decision
        refund = Refund(self._rule, asked, decision)
        response = await self._get_response(request) if decision.allowed else self._denied(request, decision)
        for one in refund.of(response.status_code):
            try:
                await self._rule.ask_async("refund", one)
            except SlidegateError:
                pass  # the charge stays
        return _with_fields(response, decision)


def settings_of() -> dict[str, Any]:
    options = getattr(settings, "SLIDEGATE", None)
    if not isinstance(options, dict) or "limit" not in options:
        text = 'invalid settings: SLIDEGATE must be a dictionary, for example {"limit": "100/1m"}'
        raise InvalidRequest("invalid_request", text)
    return options


def rule_of(options: dict[str, Any]) -> Rule[HttpRequest]:
    return Rule(options["limit"], **{name: value for name, value in options.items() if name != "limit"})


def asked_of(rule: Rule[HttpRequest], request: HttpRequest) -> Asked:
    forwarded = request.headers.get(rule.client_header) if rule.client_header else None
    return rule.asked(
        request,
        peer=request.META.get("REMOTE_ADDR"),
        forwarded=[] if forwarded is None else [forwarded.encode("latin-1", "replace")],
        method=request.method or "GET",
        path=request.path,
    )


def _deny(_request: HttpRequest, decision: Decision) -> HttpResponse:
    response = HttpResponse(problem_body(decision), content_type="application/problem+json", status=decision.status)
    response["Cache-Control"] = "no-store"
    return response


def _with_fields(response: HttpResponseBase, decision: Decision) -> HttpResponseBase:
    for name, value in decision.headers:
        if name not in response:
            response[name] = value
    return response
