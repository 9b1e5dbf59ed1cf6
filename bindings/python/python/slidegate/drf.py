"""A throttle for Django REST framework: one class for all policies of a gate.

    REST_FRAMEWORK = {"DEFAULT_THROTTLE_CLASSES": ["slidegate.drf.Throttle"]}
    SLIDEGATE = {"limit": "100/1m"}

The framework asks all throttles of a view, and each charges, even if another denies. One class over a gate with all
policies charges a denied request nothing.
"""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework.throttling import BaseThrottle

from ._middleware import Rule, require_sync
from .decision import Decision
from .django import asked_of, rule_of, settings_of

__all__ = ["Throttle"]


class Throttle(BaseThrottle):  # type: ignore[misc]
    """Uses `settings.SLIDEGATE` as the middleware does, or the `options` of a subclass. Functions get the framework's
    request, whose `user` is known. Views find the decision in `request.rate_limit`."""

    #: `limit` and options, for a subclass that limits some views in another way.
    options: ClassVar[dict[str, Any] | None] = None
    _rule: ClassVar[Rule[Any] | None] = None

    def allow_request(self, request: Any, view: Any) -> bool:
        kind = type(self)
        if "_rule" not in kind.__dict__:
            options = dict(kind.options if kind.options is not None else settings_of())
            options.pop("denied", None)
            kind._rule = rule_of(options)
            require_sync(kind._rule.limit)
        rule = kind._rule
        assert rule is not None
        if rule.skips(request):
            return True
        decision: Decision = rule.ask_sync("check", asked_of(rule, request))
        request.rate_limit = decision
        self._decision = decision
        return decision.allowed

    def wait(self) -> float | None:
        """Seconds for `Retry-After`; `None` if the request never fits."""
        after = self._decision.retry_after
        return None if after is None else after.total_seconds()
