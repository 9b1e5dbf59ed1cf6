"""Gates in memory: many policies, all or none; reservations."""

import json
import random
from collections import UserDict
from datetime import timedelta

import pytest

import slidegate
from slidegate import Gate, InvalidRequest, ManualClock

POLICIES = [
    {"name": "per-user", "scope": ["user"], "quota": "3/1m"},
    {"name": "per-ip", "scope": ["ip"], "quota": "5/1m"},
    {"name": "login", "when": {"path": "/login"}, "scope": ["ip"], "limit": 1, "window": "1m"},
]
TOKENS = [
    {"name": "tokens", "scope": ["user"], "quota": "1000/1m"},
    {"name": "requests", "scope": ["user"], "quota": "100/1m", "counts": "requests"},
    {"name": "streams", "scope": ["user"], "in_flight": 2, "lease": "30s"},
]


def test_the_strictest_policy_decides_and_a_denial_charges_none():
    gate = Gate(POLICIES, clock=ManualClock())
    for _ in range(3):
        assert gate.check({"user": "alice", "ip": "192.0.2.7"})
    denied = gate.check({"user": "alice", "ip": "192.0.2.7"})
    assert (denied.policy, denied.key, denied.reason, denied.status) == ("per-user", "alice", "over_limit", 429)
    assert [(one.policy, one.allowed, one.used) for one in denied.policies] == [
        ("per-user", False, 3),
        ("per-ip", True, 3),
    ]
    assert dict(denied.headers)["ratelimit-policy"] == '"per-user";q=3;w=60, "per-ip";q=5;w=60'
    assert denied.problem["violated-policies"] == ["per-user"] and denied.why == denied.problem["detail"]
    login = gate.check({"ip": "192.0.2.7", "path": "/login"})
    assert login and login.policy == "login" and repr(login).startswith("<Decision allowed: login used 1 of 1")
    free = gate.check({"other": "x"})
    assert free and free.policy is None and free.policies == [] and free.headers == []


def test_addresses_are_compared_whatever_their_spelling():
    gate = Gate([{"name": "per-ip", "scope": ["ip"], "quota": "2/1m"}])
    assert gate.check({"ip": "2001:db8::1"}) and gate.check({"ip": "2001:0DB8:0::0001"})
    assert not gate.check({"ip": "2001:db8::1"})


# Reference history: what all or nothing means, in ten lines.
@pytest.mark.parametrize("seed", range(3))
def test_random_histories_charge_all_or_none(seed):
    draw, clock = random.Random(seed), ManualClock()
    limits = {"a": 5, "b": 9, "c": 30}
    gate = Gate([{"name": n, "scope": [n], "quota": f"{limit}/1m"} for n, limit in limits.items()], clock=clock)
    log, now = [], 0
    for _ in range(1500):
        step = draw.choice([0, 0, 1, 10, draw.randrange(61)])
        clock.advance(timedelta(seconds=step))
        now += step
        request = {name: draw.choice("xyz") for name in limits if draw.random() < 0.7}
        cost = draw.choice([1, 1, 2, 4])
        used = {
            name: sum(c for at, name2, key2, c in log if (name2, key2) == (name, key) and at + 60 > now)
            for name, key in request.items()
        }
        allowed = all(used[name] + cost <= limits[name] for name in request)
        decision = gate.check(request, cost=cost)
        assert decision.allowed == allowed
        if allowed:
            log += [(now, name, key, cost) for name, key in request.items()]
        assert {one.policy: one.used for one in decision.policies} == {n: u + cost * allowed for n, u in used.items()}


def test_yaml_files_and_text_are_those_of_the_service(tmp_path):
    text = "policies:\n  - {name: per-user, scope: [user], limit: 1, window: 1m}\nserver: {listen: '127.0.0.1:1'}\n"
    path = tmp_path / "slidegate.yaml"
    path.write_text(text)
    for gate in (Gate(text), Gate.from_file(path)):
        assert gate.check({"user": "alice"}) and not gate.check({"user": "alice"})
    path.write_text("policies:\n  - {name: per-user, quota: 100/0s}\n")
    with pytest.raises(InvalidRequest, match=r"slidegate.yaml:2: policy `per-user`: invalid quota `100/0s`"):
        Gate.from_file(path)
    with pytest.raises(InvalidRequest, match="cannot be read"):
        Gate.from_file(tmp_path / "none")


@pytest.mark.parametrize(
    "policies",
    [[], "", "policies: 7", [{"name": "a"}], [{"quota": "1/1m"}], 7, [7], [{"name": object()}],
     [{"name": "a", "quota": "1/1m", "typo": 1}], [{"name": "a", "quota": "1/1m"}] * 2, "&a [*a]", "\0"],
)  # fmt: skip
def test_invalid_policies_are_one_error(policies):
    with pytest.raises((InvalidRequest, TypeError)) as error:
        Gate(policies)
    if policies != 7:
        assert error.value.code == "invalid_policy"


def test_configure_replaces_policies_or_nothing():
    gate = Gate(POLICIES)
    gate.check({"user": "alice"}, cost=3)
    with pytest.raises(InvalidRequest):
        gate.configure([{"name": "per-user", "quota": "x"}])
    assert not gate.check({"user": "alice"})
    gate.configure([{"name": "per-user", "scope": ["user"], "quota": "4/1m"}])
    assert gate.check({"user": "alice"}).remaining == 0


def test_a_named_policy_and_its_errors():
    gate = Gate(POLICIES)
    assert gate.check({"user": "alice", "ip": "192.0.2.7"}, policy="per-ip").policies[0].policy == "per-ip"
    with pytest.raises(InvalidRequest) as error:
        gate.check({"user": "alice"}, policy="typo")
    assert error.value.code == "unknown_policy"
    with pytest.raises(InvalidRequest) as error:
        gate.check({"user": "alice"}, policy="per-ip")
    assert error.value.code == "missing_attribute"


class Weird(UserDict):
    pass


class Failing(UserDict):
    def items(self):
        raise ZeroDivisionError


def test_attributes_are_any_mapping_and_nothing_else():
    gate = Gate(POLICIES)
    assert gate.check(Weird(user=b"alice")).key == "alice"
    with pytest.raises(ZeroDivisionError):
        gate.check(Failing())
    for attributes in ("user", None, [("user", "a")], {"user": 1}, {1: "user"}, {"\ud800": "a"}, {"user": "\ud800"}):
        with pytest.raises(InvalidRequest):
            gate.check(attributes)
    for cost in (-1, 1.0, True, {"a": -1}, {"a": True}, {1: 1}, "1"):
        with pytest.raises(InvalidRequest):
            gate.check({"user": "alice"}, cost=cost)
    assert gate.peek({"user": "alice"}).used == 1
    assert gate.check({f"a{number}": "x" * 100_000 for number in range(1000)})


def test_idempotency_keys_charge_once():
    gate = Gate(POLICIES)
    for _ in range(3):
        assert gate.check({"user": "alice"}, idempotency_key="order-1").used == 1
    assert gate.check({"user": "alice"}, idempotency_key="order-2").used == 2


def test_a_reservation_holds_and_a_block_settles_what_was_recorded():
    gate = Gate(TOKENS, clock=ManualClock())
    alice = {"user": "alice"}
    with gate.reserve(alice, cost=600) as reservation:
        assert reservation and reservation.ticket and reservation.decision.allowed
        held = {one.policy: one.held for one in reservation.decision.policies}
        assert (held["tokens"], held["streams"]) == (600, 1)
        assert not gate.reserve(alice, cost=600)
        assert reservation.settle_so_far(100).outcome == "changed"
        reservation.record(150)
    used = {one.policy: (one.used, one.held) for one in gate.peek(alice).policies}
    assert used["tokens"] == (150, 0) and used["requests"] == (1, 0) and used["streams"] == (0, 0)
    with pytest.raises(ZeroDivisionError), gate.reserve(alice, cost=500):
        raise ZeroDivisionError
    used = {one.policy: (one.used, one.held) for one in gate.peek(alice).policies}
    assert used["tokens"] == (150, 0) and used["requests"] == (1, 0)


def test_tickets_are_settled_once_extended_and_cancelled():
    clock = ManualClock()
    gate = Gate(TOKENS, clock=clock)
    alice = {"user": "alice"}
    reservation = gate.reserve(alice, cost=500, ttl=timedelta(seconds=20))
    assert reservation.ttl == pytest.approx(20, abs=0.1) and not reservation.needs_extension
    settled = gate.settle(reservation.ticket, 70)
    assert settled.outcome == "changed" and {one.policy: one.decision.used for one in settled.policies}["tokens"] == 70
    assert gate.settle(reservation.ticket, 70).outcome == "already_settled"
    reservation = gate.reserve(alice, cost=500, ttl=timedelta(seconds=20))
    assert gate.extend(reservation.ticket, timedelta(minutes=1)).outcome == "changed"
    assert not gate.extend(reservation.ticket, hold=5000)
    clock.advance(timedelta(seconds=25))
    assert gate.cancel(reservation.ticket).outcome == "changed"
    late = gate.reserve(alice, cost=10, ttl=timedelta(seconds=1))
    clock.advance(timedelta(seconds=2))
    assert gate.settle(late.ticket, 3).outcome == "expired"
    other = Gate(TOKENS).reserve(alice, cost=1)
    assert gate.settle(other.ticket, 1).outcome == "unknown"
    with pytest.raises(InvalidRequest) as error:
        gate.settle("no ticket", 1)
    assert error.value.code == "invalid_ticket"
    for ttl in (timedelta(0), timedelta(days=9), timedelta(seconds=-1)):
        with pytest.raises(InvalidRequest):
            gate.reserve(alice, cost=1, ttl=ttl)


def test_costs_by_name():
    gate = Gate([{"name": n, "scope": ["user"], "quota": "100/1m", "counts": n} for n in ("input", "output")])
    decision = gate.check({"user": "alice"}, cost={"input": 10, "output": 90})
    assert {one.policy: one.used for one in decision.policies} == {"input": 10, "output": 90}
    with pytest.raises(InvalidRequest) as error:
        gate.check({"user": "alice"}, cost={"input": 1, "ouput": 1})
    assert error.value.code == "unknown_cost"


def test_decisions_can_be_shown_as_json():
    gate = Gate(POLICIES)
    gate.check({"user": "alice"}, cost=3)
    assert json.loads(json.dumps(gate.check({"user": "alice"}).problem))["status"] == 429
    assert isinstance(gate.check({"user": "alice"}), slidegate.Decision)
