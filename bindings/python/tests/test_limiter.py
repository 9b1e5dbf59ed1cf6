"""The limiter: exact, and unimpressed by what callers pass."""

import random
import threading
from collections import defaultdict
from datetime import timedelta

import pytest

import slidegate
from slidegate import InvalidRequest, Limiter, ManualClock


class Naive:
    """A sliding log as one would write it first: every charge with its time."""

    def __init__(self, limit, window_us):
        self.limit, self.window_us, self.now = limit, window_us, 0
        self.charges = defaultdict(list)

    def used(self, key):
        self.charges[key] = [one for one in self.charges[key] if one[0] + self.window_us > self.now]
        return sum(cost for _, cost in self.charges[key])

    def check(self, key, cost):
        if cost and self.used(key) + cost > self.limit:
            return False
        if cost:
            self.charges[key].append((self.now, cost))
        return True

    def retry_after_us(self, key, cost):
        """The first moment at which the cost fits; None if it never does."""
        if cost > self.limit:
            return None
        over = self.used(key) + cost - self.limit
        if over <= 0 or cost == 0:
            return 0
        for at, charged in self.charges[key]:
            over -= charged
            if over <= 0:
                return at + self.window_us - self.now


# An application trusts that no window ever has more than the limit, and that the wait is exact.
@pytest.mark.parametrize("seed", range(5))
def test_random_histories_agree_with_a_naive_log(seed):
    draw = random.Random(seed)
    limit, window_ms = draw.choice([(1, 10), (5, 100), (40, 1000), (500, 60_000)])
    clock, naive = ManualClock(), Naive(limit, window_ms * 1000)
    limiter = Limiter(f"{limit}/{window_ms}ms", clock=clock)
    for _ in range(3000):
        if draw.random() < 0.5:
            step = draw.choice([0, 1, 999, draw.randrange(window_ms * 1000 + 2)])
            clock.advance(timedelta(microseconds=step))
            naive.now += step
        key, cost = draw.choice(["a", b"b", "c" * 40]), draw.choice([0, 1, 1, 2, draw.randrange(limit + 2)])
        wait, allowed = naive.retry_after_us(key, cost), naive.check(key, cost)
        decision = limiter.check(key, cost)
        assert (decision.allowed, bool(decision)) == (allowed, allowed)
        expected = None if wait is None else timedelta(microseconds=wait)
        assert decision.retry_after == expected
        assert (decision.used, decision.remaining) == (naive.used(key), limit - naive.used(key))
        assert decision.cost == (cost if allowed else 0)


def test_a_denied_cost_is_not_charged_and_the_wait_is_exact():
    clock = ManualClock()
    limiter = Limiter("10/1m", clock=clock)
    assert limiter.check("alice", 9).remaining == 1
    denied = limiter.check("alice", 5)
    assert (denied.allowed, denied.reason, denied.status, denied.remaining) == (False, "over_limit", 429, 1)
    clock.advance(denied.retry_after - timedelta(microseconds=1))
    assert not limiter.allows("alice", 5)
    clock.advance(timedelta(microseconds=1))
    assert limiter.allows("alice", 5)
    assert limiter.check("alice", 11).retry_after is None


@pytest.mark.parametrize("algorithm", ["sliding-log", "sliding-window", "fixed-window", "token-bucket"])
def test_every_algorithm_refunds_penalizes_and_resets(algorithm):
    limiter = Limiter("10/1m", algorithm=algorithm, clock=ManualClock())
    assert limiter.check("alice", 4).used == 4
    assert limiter.refund("alice", 3).remaining == 9
    assert limiter.penalize("alice", 15).used == 16
    assert not limiter.allows("alice") and limiter.peek("bob").used == 0
    assert limiter.reset("alice") is True and limiter.reset("alice") is False
    assert limiter.allows("alice", 10)


def test_str_and_bytes_of_the_same_text_are_one_key():
    limiter = Limiter("2/1m")
    assert limiter.allows("é") and limiter.allows("é".encode()) and not limiter.allows("é")
    assert limiter.allows(b"\xff") and limiter.allows("") and limiter.allows("\0")


def test_configure_keeps_usage_and_says_the_quota():
    limiter = Limiter("10/1m", clock=ManualClock())
    limiter.check("alice", 10)
    limiter.configure("12/1m")
    assert (limiter.peek("alice").remaining, limiter.quota) == (2, "12/1m")
    with pytest.raises(InvalidRequest):
        limiter.configure("12/0s")
    assert limiter.quota == "12/1m"


def test_header_fields_problem_and_repr_are_those_of_the_service():
    limiter = Limiter("1/1m", clock=ManualClock(), name="per-user")
    allowed, denied = limiter.check("alice"), limiter.check("alice")
    assert isinstance(denied, slidegate.Decision) and allowed.problem is None
    fields = dict(denied.headers)
    assert fields["ratelimit-policy"] == '"per-user";q=1;w=60' and fields["retry-after"] == "60"
    assert denied.problem["status"] == 429 and "Retry in 60 seconds" in denied.problem["detail"]
    assert repr(denied) == "<Decision denied: used 1 of 1, 0 remain>"
    assert [name for name, _ in Limiter("1/1m", draft="off", x_ratelimit="off").check("a").headers] == []


# What a caller passes by mistake must be an error, not a limit that does not hold.
@pytest.mark.parametrize("cost", [-1, 2**64, True, False, 1.0, "1", b"1", [], float("nan"), {"a": 1}])
def test_a_cost_that_is_no_whole_number_is_an_error(cost):
    limiter = Limiter("10/1m")
    for call in (limiter.allows, limiter.check, limiter.peek, limiter.refund, limiter.penalize):
        with pytest.raises(InvalidRequest, match="invalid cost of type .*: must be a whole number") as error:
            call("alice", cost)
        assert isinstance(error.value, ValueError) and error.value.code == "invalid_request"
    assert limiter.peek("alice").used == 0


class Hostile:
    def __str__(self):
        raise ZeroDivisionError

    __repr__ = __hash__ = __index__ = __bool__ = __eq__ = __str__


@pytest.mark.parametrize("key", [None, 7, 1.5, ["a"], Hostile(), "\ud800", bytearray(b"a"), object])
def test_a_key_that_is_no_text_is_an_error(key):
    limiter = Limiter("10/1m")
    for call in (limiter.allows, limiter.check, limiter.reset):
        with pytest.raises(InvalidRequest):
            call(key)
    with pytest.raises(InvalidRequest):
        limiter.check("alice", Hostile())


def test_huge_keys_are_hashed_and_differ():
    limiter = Limiter("1/1m")
    huge = "x" * 20_000_000
    assert limiter.allows(huge) and not limiter.allows(huge) and limiter.allows(huge + "y")


@pytest.mark.parametrize("quota", ["", "100", "100/0s", "-1/1m", "1/1y" * 1000, "1e3/1m", "\0", "100/1m "])
def test_an_invalid_quota_says_what_is_expected(quota):
    if quota == "100/1m ":
        assert Limiter(quota).quota == "100/1m"
        return
    with pytest.raises(InvalidRequest) as error:
        Limiter(quota)
    assert error.value.code == "invalid_quota" and "\n" not in str(error.value) and len(str(error.value)) < 400


def test_invalid_options_are_errors():
    for options in ({"algorithm": "x"}, {"algorithm": "in-flight"}, {"draft": "x"}, {"x_ratelimit": "x"}):
        with pytest.raises(InvalidRequest):
            Limiter("1/1m", **options)
    for value in (timedelta(seconds=-1), 5, None, timedelta.max):
        clock = ManualClock()
        if value is timedelta.max:
            clock.advance(value)
            continue
        with pytest.raises(InvalidRequest):
            clock.advance(value)


def test_a_zero_limit_denies_and_a_zero_cost_is_free():
    limiter = Limiter("0/1m")
    assert not limiter.allows("alice") and limiter.allows("alice", 0)
    assert Limiter(f"{2**64 - 1}/1m").check("alice", 2**64 - 1).remaining == 0


# Threads share a limiter, and it must hold.
def test_threads_never_exceed_the_limit():
    limiter = Limiter("1000/1h")
    allowed = []

    def run():
        allowed.append(sum(limiter.allows("alice") for _ in range(1000)))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(allowed) == 1000


# Whatever keys clients make up, no key that has used up its limit starts again in a full store.
def test_a_full_store_forgets_no_key():
    limiter = Limiter("1/1h", max_keys=1000)
    for number in range(20_000):
        limiter.allows(f"key-{number}")
    assert not any(limiter.peek(f"key-{number}").allowed for number in range(20_000))
