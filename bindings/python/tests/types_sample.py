"""Checked with `mypy --strict`, not run: what users write must have types."""

from datetime import timedelta
from typing_extensions import assert_type

from slidegate import Decision, Gate, Limiter, ManualClock, Reservation, SharedGate, parse_rate_limit
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
