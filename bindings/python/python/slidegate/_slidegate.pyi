from asyncio import AbstractEventLoop
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, final

from typing_extensions import Self, disjoint_base

from .decision import Decision
from .reservation import Cost

__all__ = [
    "ClientRule",
    "Completions",
    "Engine",
    "Job",
    "Limiter",
    "LimiterDecision",
    "ManualClock",
    "after_fork",
    "before_fork",
    "shutdown",
]

@disjoint_base
class Limiter:
    def __new__(
        cls,
        quota: str,
        *,
        algorithm: str | None = None,
        burst: int | None = None,
        clock: ManualClock | None = None,
        max_keys: int | None = None,
        max_waiting: int | None = None,
        name: str = "default",
        draft: str | None = None,
        x_ratelimit: str | None = None,
    ) -> Self: ...
    def allows(self, key: str | bytes, cost: int | None = None) -> bool: ...
    def check(self, key: str | bytes, cost: int | None = None) -> Decision: ...
    def peek(self, key: str | bytes, cost: int | None = None) -> Decision: ...
    def refund(self, key: str | bytes, cost: int | None = None) -> Decision: ...
    def penalize(self, key: str | bytes, cost: int | None = None) -> Decision: ...
    def reset(self, key: str | bytes) -> bool: ...
    def run_acquire(self, key: str | bytes, cost: int | None, timeout: float) -> Decision: ...
    def start_acquire(
        self, key: str | bytes, cost: int | None, timeout: float, completions: Completions
    ) -> Any: ...
    def configure(self, quota: str, *, algorithm: str | None = None, burst: int | None = None) -> None: ...
    @property
    def quota(self) -> str: ...

@final
class LimiterDecision:
    def __bool__(self) -> bool: ...
    @property
    def allowed(self) -> bool: ...
    @property
    def limit(self) -> int: ...
    @property
    def used(self) -> int: ...
    @property
    def held(self) -> int: ...
    @property
    def remaining(self) -> int: ...
    @property
    def cost(self) -> int: ...
    @property
    def retry_after(self) -> timedelta | None: ...
    @property
    def reset_after(self) -> timedelta: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def source(self) -> str: ...
    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> list[tuple[str, str]]: ...
    @property
    def problem(self) -> dict[str, Any] | None: ...
    @property
    def why(self) -> str | None: ...
    @property
    def policy(self) -> None: ...
    @property
    def key(self) -> str: ...
    @property
    def policies(self) -> tuple[()]: ...
    @property
    def block(self) -> None: ...
    @property
    def error(self) -> None: ...

@final
class ManualClock:
    def __new__(cls) -> ManualClock: ...
    def advance(self, by: timedelta) -> None: ...

@final
class ClientRule:
    def __new__(
        cls, trusted_proxies: Sequence[str], header: str | None, ipv6_prefix: int | None
    ) -> ClientRule: ...
    @property
    def header(self) -> str | None: ...
    def client(self, peer: str | None, lines: Sequence[bytes]) -> str: ...

@final
class Job:
    @staticmethod
    def decide(
        verb: str,
        attributes: Mapping[str, str | bytes],
        cost: Cost | None = None,
        policy: str | None = None,
        idempotency_key: str | None = None,
        quota_text: str | None = None,
    ) -> Job: ...
    @staticmethod
    def allows(attributes: Mapping[str, str | bytes], cost: Cost, quota_text: str) -> Job: ...
    @staticmethod
    def acquire(
        timeout: float, attributes: Mapping[str, str | bytes], cost: Cost | None = None, policy: str | None = None
    ) -> Job: ...
    @staticmethod
    def acquire_reservation(
        timeout: float,
        attributes: Mapping[str, str | bytes],
        cost: Cost | None = None,
        policy: str | None = None,
        ttl: timedelta | None = None,
    ) -> Job: ...
    @staticmethod
    def reserve(
        attributes: Mapping[str, str | bytes],
        cost: Cost | None = None,
        policy: str | None = None,
        idempotency_key: str | None = None,
        ttl: timedelta | None = None,
    ) -> Job: ...
    @staticmethod
    def change(
        kind: str,
        ticket: str,
        cost: Cost | None = None,
        ttl: timedelta | None = None,
        hold: Cost | None = None,
    ) -> Job: ...

@final
class Engine:
    @staticmethod
    def memory(
        policies: str,
        file_name: str | None,
        clock: ManualClock | None,
        max_keys: int | None,
        max_waiting: int | None,
        draft: str | None,
        x_ratelimit: str | None,
    ) -> Engine: ...
    @staticmethod
    def shared(
        url: str,
        policies: str,
        file_name: str | None,
        max_waiting: int | None,
        draft: str | None,
        x_ratelimit: str | None,
        options: dict[str, Any],
    ) -> Engine: ...
    def run(self, job: Job) -> Any: ...
    def start(self, job: Job, completions: Completions) -> Any: ...
    def configure(self, policies: str, file_name: str | None) -> None: ...
    @property
    def waiting(self) -> int: ...
    @property
    def has_in_flight(self) -> bool: ...

@final
class Completions:
    def __new__(cls, event_loop: AbstractEventLoop) -> Completions: ...
    def is_of(self, event_loop: AbstractEventLoop) -> bool: ...
    def drain(self) -> None: ...

def shutdown() -> None: ...
def before_fork() -> None: ...
def after_fork() -> None: ...
