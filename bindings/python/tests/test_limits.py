"""The storage for `limits` and Flask-Limiter."""

import random
import time

import flask
import flask_limiter
import limits
import pytest
from conftest import PATIENT
from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter

import slidegate.limits
from slidegate import ManualClock
from slidegate.limits import SlidegateStorage


@pytest.fixture(params=["slidegate://", "slidegate+redis"])
def storage(request):
    """The URI of a storage, and its options."""
    if request.param == "slidegate://":
        return request.param, {}
    return "slidegate+" + request.getfixturevalue("redis").url, {"deadline": PATIENT}


def test_the_moving_window_is_exact_and_a_denial_counts_nowhere(storage):
    uri, options = storage
    strategy = MovingWindowRateLimiter(limits.storage.storage_from_string(uri, **options))
    item = limits.parse("5/minute")
    assert strategy.hit(item, "alice", cost=4) and not strategy.hit(item, "alice", cost=2)
    assert strategy.test(item, "alice") and strategy.hit(item, "alice") and not strategy.test(item, "alice")
    stats = strategy.get_window_stats(item, "alice")
    assert stats.remaining == 0 and 55 < stats.reset_time - time.time() <= 60.1
    assert strategy.get_window_stats(item, "bob").remaining == 5
    assert not strategy.hit(item, "bob", cost=6)
    strategy.clear(item, "alice")
    assert strategy.hit(item, "alice", cost=5)


def test_random_histories_agree_with_limits_own_memory(monkeypatch):
    clock, now = ManualClock(), [1_000_000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    ours = MovingWindowRateLimiter(SlidegateStorage(clock=clock))
    draw = random.Random(1)
    item = limits.parse("7/10 seconds")
    log = []
    for _ in range(2000):
        step = draw.choice([0, 0.1, 1, draw.random() * 12])
        step = round(step, 3)
        now[0] += step
        clock.advance(slidegate.limits.timedelta(microseconds=round(step * 1e6)))
        cost = draw.choice([1, 1, 2, 8])
        log = [(at, c) for at, c in log if at + 10 - now[0] > 1e-6]
        fits = sum(c for _, c in log) + cost <= 7
        assert ours.hit(item, "alice", cost=cost) == fits
        if fits:
            log.append((now[0], cost))
        stats = ours.get_window_stats(item, "alice")
        assert stats.remaining == 7 - sum(c for _, c in log)
        assert stats.reset_time == pytest.approx((log[0][0] if log else now[0]) + 10, abs=1e-3)


def test_other_strategies_are_refused_with_the_way_out():
    with pytest.raises(NotImplementedError, match="moving-window"):
        FixedWindowRateLimiter(SlidegateStorage()).hit(limits.parse("1/second"), "alice")
    storage = SlidegateStorage()
    assert storage.check() and storage.reset() is None


def test_flask_limiter_uses_it(storage):
    uri, options = storage
    app = flask.Flask("app")
    limiter = flask_limiter.Limiter(
        lambda: "alice", app=app, strategy="moving-window", storage_uri=uri, storage_options=options,
        headers_enabled=True, default_limits=["3/minute"],
    )  # fmt: skip

    @app.get("/")
    def hello():
        return "hello"

    client = app.test_client()
    assert [client.get("/").status_code for _ in range(4)] == [200, 200, 200, 429]
    denied = client.get("/")
    assert denied.headers["X-RateLimit-Remaining"] == "0" and 50 <= int(denied.headers["Retry-After"]) <= 61
    assert limiter.storage.__class__ is SlidegateStorage


def test_a_redis_that_is_away_is_an_error_of_limits_or_a_fallback(redis):
    storage = limits.storage.storage_from_string("slidegate+" + redis.url, deadline=PATIENT)
    assert storage.check()
    redis.stop()
    assert not storage.check()
