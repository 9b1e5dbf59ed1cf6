"""Storage for the package `limits`, and so for Flask-Limiter: its strategy `moving-window`, exactly.

    import slidegate.limits  # registers the schemes
    Limiter(key_func, app=app, strategy="moving-window", storage_uri="slidegate://")

`slidegate://` counts in this process, and `slidegate+redis://host:6379` (also `+rediss`, `+redis+cluster` and
`+redis+sentinel`) in Redis. A key takes 4 to 10 bytes for each entry, and a decision the same time at any limit.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from limits.storage import MovingWindowSupport, Storage

from ._slidegate import Engine, Job
from .decision import Decision
from .errors import SlidegateError
from .gate import Gate, SharedGate

__all__ = ["SlidegateStorage"]

#: The quota of this policy is replaced by that of each call.
_POLICIES = [{"name": "limits", "scope": ["key"], "quota": "1/1s"}]


class SlidegateStorage(Storage, MovingWindowSupport):
    """An entry that is denied counts nowhere. Options of `SharedGate` may be given as storage options."""

    STORAGE_SCHEME = [
        "slidegate",
        "slidegate+redis",
        "slidegate+rediss",
        "slidegate+redis+cluster",
        "slidegate+rediss+cluster",
        "slidegate+redis+sentinel",
        "slidegate+rediss+sentinel",
    ]

    def __init__(self, uri: str | None = None, wrap_exceptions: bool = False, **options: Any) -> None:
        super().__init__(uri, wrap_exceptions=wrap_exceptions)
        self._options = options
        self._url = (uri or "slidegate://").removeprefix("slidegate").removeprefix("+")
        self._engine = self._make()

    def _make(self) -> Engine:
        if self._url == "://":
            return Gate(_POLICIES, **self._options)._engine
        return SharedGate(self._url, _POLICIES, **self._options)._engine

    @property
    def base_exceptions(self) -> type[Exception]:
        return SlidegateError

    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        return self._engine.run(Job.allows({"key": key}, amount, f"{limit}/{expiry}s"))

    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        used = self._peek(key, limit, expiry, 0)
        if used.used == 0:
            return time.time(), 0
        # The oldest entry ends when one more than what remains fits.
        oldest = self._peek(key, limit, expiry, min(int(used.remaining) + 1, limit))
        left = oldest.retry_after or timedelta(0)
        return time.time() + left.total_seconds() - expiry, int(used.used)

    def _peek(self, key: str, limit: int, expiry: int, amount: int) -> Decision:
        return self._engine.run(Job.decide("peek", {"key": key}, amount, None, None, f"{limit}/{expiry}s"))

    def clear(self, key: str) -> None:
        self._engine.run(Job.decide("reset", {"key": key}))

    def check(self) -> bool:
        return self._peek("", 1, 1, 1).error is None

    def reset(self) -> int | None:
        if self._url != "://":
            raise NotImplementedError("not in Redis, where others count: clear single keys")
        self._engine = self._make()
        return None

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        raise NotImplementedError('use the strategy "moving-window", which is exact: fixed windows let twice the limit pass')

    def get(self, key: str) -> int:
        raise NotImplementedError('use the strategy "moving-window"')

    def get_expiry(self, key: str) -> float:
        raise NotImplementedError('use the strategy "moving-window"')
