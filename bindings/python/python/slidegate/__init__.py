"""slidegate: exact sliding-window rate limits, in the process, over Redis, or by the slidegate service.

    limiter = slidegate.Limiter("100/1m")
    if not limiter.allows("alice"): ...  # 429
"""

from typing import TYPE_CHECKING

from .decision import Decision, PolicyDecision
from .errors import InvalidRequest, RateLimited, SlidegateError
from .fields import QuotaPolicy, RateLimit, RateLimits, parse_rate_limit
from .reservation import AsyncReservation, Reservation, SettledPolicy, Settlement

if TYPE_CHECKING:
    from ._slidegate import ManualClock
    from .gate import Gate, SharedGate
    from .limiter import Limiter
else:
    try:
        from ._slidegate import LimiterDecision, ManualClock
    except ModuleNotFoundError:
        # A platform without a wheel: `slidegate.client`, the middleware over it and the parser work.
        def __getattr__(name):
            if name in ("Gate", "Limiter", "ManualClock", "SharedGate"):
                raise ImportError(f"slidegate.{name} needs the native part of slidegate, which this installation lacks")
            raise AttributeError(f"module 'slidegate' has no attribute {name!r}")
    else:
        from .gate import Gate, SharedGate
        from .limiter import Limiter

        Decision.register(LimiterDecision)

__all__ = [
    "AsyncReservation",
    "Decision",
    "Gate",
    "InvalidRequest",
    "Limiter",
    "ManualClock",
    "PolicyDecision",
    "QuotaPolicy",
    "RateLimit",
    "RateLimited",
    "RateLimits",
    "Reservation",
    "SettledPolicy",
    "Settlement",
    "SharedGate",
    "SlidegateError",
    "parse_rate_limit",
]
