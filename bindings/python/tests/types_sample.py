"""Checked with `mypy --strict`, not run: what users write must have types."""

from datetime import timedelta
from typing_extensions import assert_type

from slidegate import (
    AsyncReservation,
    Decision,
    Gate,
    Limiter,
    ManualClock,
    Reservation,
    SharedGate,
    parse_rate_limit,
)
from slidegate.client import AsyncClient, Client


def limiter() -> None:
    clock = ManualClock()
    one = Limiter("100/1m", algorithm="token-bucket", burst=10, clock=clock)
    assert_type(one.allows("alice"), bool)
    decision = one.check(b"alice", 3)
    assert_type(decision, Decision)
    assert_type(decision.retry_after, timedelta | None)
    for name, value in decision.headers:
        assert_type((name, value), tuple[str, str])
    clock.advance(timedelta(seconds=1))
    one.allows(7)  # type: ignore[arg-type]


def gate() -> None:
    one = Gate([{"name": "tokens", "scope": ["user"], "quota": "100/1m"}])
    assert_type(one.check({"user": "alice"}, cost={"input": 1}).remaining, float)
    with one.reserve({"user": "alice"}, cost=4096, ttl=timedelta(seconds=30)) as reservation:
        assert_type(reservation, Reservation)
        reservation.record(12)
    Client("http://127.0.0.1:7979", on_failure="maybe")  # type: ignore[arg-type]


async def shared() -> None:
    one = SharedGate("redis://127.0.0.1", "policies: []", deadline=timedelta(milliseconds=50))
    assert_type(await one.check({"user": "alice"}), Decision)
    assert_type(one.check_sync({"user": "alice"}), Decision)
    async with await AsyncClient().reserve({"user": "alice"}) as reservation:
        assert_type(reservation.recorded is None, bool)
    assert_type(parse_rate_limit({}).wait, timedelta)


async def waiting() -> None:
    limiter, client = Limiter("100/1m", max_waiting=10), Client()
    assert_type(await limiter.acquire("alice", 2, timeout=1.5), Decision)
    assert_type(limiter.acquire_sync(b"alice"), Decision)
    assert_type(await AsyncClient().acquire({"user": "alice"}, timeout=1), Decision)
    with client.turn({"user": "alice"}) as decision:
        assert_type(decision, Decision)
    async with limiter.turn("alice", timeout=1) as decision:
        assert_type(decision.remaining, float)
    limiter.turn({"user": "alice"})  # type: ignore[arg-type]
    gate = SharedGate("redis://127.0.0.1", "policies: []")
    assert_type(await gate.acquire_reservation({"user": "alice"}), AsyncReservation)

    @gate.wrap(lambda user: {"user": user}, timeout=1)
    async def fetch(user: str) -> int:
        return 7

    assert_type(await fetch("alice"), int)
