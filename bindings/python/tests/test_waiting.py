"""Waiting for a turn: the same behaviour in event loops and threads, in memory, over Redis, and by the service."""

import asyncio
import concurrent.futures
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from datetime import timedelta

import pytest
import uvloop
from conftest import PATIENT, Service, until_async, wait_until

from slidegate import Gate, InvalidRequest, Limiter, ManualClock, RateLimited, SharedGate
from slidegate._slidegate import after_fork, before_fork
from slidegate.client import AsyncClient, Client

ALICE = {"user": "alice"}
#: Seconds after which a test fails that hangs.
SOON = 30


class Row:
    """Something that limits, and how it is called: by coroutines in an event loop of its own, or by threads.

    Turns are given by refunds, so that no test depends on how fast the clock goes.
    """

    #: The window of policies, and the longest wait: in all of them, three requests may wait one after the other.
    window, longest = "1h", 4 * 3600.0

    def __init__(self, request, is_async):
        self.request, self.is_async, self.limit = request, is_async, None
        self.loop = uvloop.new_event_loop() if is_async else None
        if is_async:
            self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
            self.thread.start()
        self.threads = concurrent.futures.ThreadPoolExecutor(16)

    def make(self, policies, **options):
        self.limit = self._make([{"scope": ["user"], **one} for one in policies], **options)
        return self

    def begin(self, verb, *args, **options):
        """A future of a call that may wait."""
        method = getattr(self.limit, verb if self.is_async or isinstance(self.limit, Client) else f"{verb}_sync")
        if self.is_async:
            return asyncio.run_coroutine_threadsafe(method(*args, **options), self.loop)
        return self.threads.submit(method, *args, **options)

    def acquire(self, attributes=ALICE, **options):
        return self.begin("acquire", attributes, **{"timeout": self.longest, **options})

    def queue(self, *costs):
        """Requests that wait, in this order, and the list of those that got their turn."""
        before, done = self.waiting(), []
        waiting = []
        for number, cost in enumerate(costs):
            waiting.append(self.acquire(cost=cost))
            waiting[-1].add_done_callback(lambda one, number=number: one.cancelled() or done.append(number))
            wait_until(lambda: self.waiting() == before + number + 1, SOON, "the queue")
        return waiting, done

    def call(self, verb, *args, **options):
        """The result of a call that does not wait."""
        sync = getattr(self.limit, f"{verb}_sync", None)
        if sync is None and not self.is_async or isinstance(self.limit, Gate):
            sync = getattr(self.limit, verb)
        if sync is not None:
            return sync(*args, **options)
        return asyncio.run_coroutine_threadsafe(getattr(self.limit, verb)(*args, **options), self.loop).result(SOON)

    def used(self):
        """What is used or held."""
        peek = self.call("peek", ALICE)
        return peek.used + peek.held

    def waiting(self):
        return self.limit.waiting

    def close(self):
        while self.limit is not None and self.waiting():
            self.call("reset", ALICE)
        self.end()

    def end(self):
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join(SOON)
        self.threads.shutdown()


class Memory(Row):
    def _make(self, policies, **options):
        return Gate(policies, **options)


class Shared(Row):
    def __init__(self, request, is_async):
        super().__init__(request, is_async)
        self.redis = request.getfixturevalue("redis")

    def _make(self, policies, **options):
        return SharedGate(self.redis.url, policies, deadline=PATIENT, **options)


class Served(Row):
    window, longest = "15s", 60.0

    def _make(self, policies):
        folder = self.request.getfixturevalue("tmp_path")
        lines = "\n".join(f"  - {one}" for one in policies)
        self.service = Service(folder, lines.replace("'", ""))
        return (AsyncClient if self.is_async else Client)(self.service.url, timeout=10)

    def waiting(self):
        """Found by what is behind: one more request would have to wait for as many windows as there are before it."""
        behind = self.call("acquire", ALICE, cost=self.call("peek", ALICE).limit, timeout=0).retry_after
        return -(-behind // timedelta(seconds=15)) - 1

    def close(self):
        if self.limit is not None:
            self.service.stop()
        self.end()


ROWS = {f"{kind.__name__}-{how}": (kind, how == "asyncio") for kind in (Memory, Shared, Served) for how in ("asyncio", "threads")}


@pytest.fixture(params=ROWS)
def row(request):
    kind, is_async = ROWS[request.param]
    row = kind(request, is_async)
    yield row
    row.close()


of_gates = pytest.mark.parametrize("row", [name for name in ROWS if "Served" not in name], indirect=True)
in_event_loops = pytest.mark.parametrize("row", [name for name in ROWS if "asyncio" in name], indirect=True)


def quota(row, limit, name="per-user"):
    return {"name": name, "quota": f"{limit}/{row.window}"}


# Who came first goes first: a small cost never overtakes a large one, or the large one would starve.
def test_turns_come_in_the_order_of_arrival(row):
    row.make([quota(row, 3)])
    assert row.acquire(cost=3).result(SOON).used == 3
    waiting, done = row.queue(3, 2, 2)
    row.call("refund", ALICE, cost=2)
    row.call("refund", ALICE, cost=1)
    first = waiting[0].result(SOON)
    assert first and first.cost == 3 and first.retry_after == timedelta(0)
    for position in (1, 2):
        row.call("refund", ALICE, cost=2)
        assert waiting[position].result(SOON)
    assert done == [0, 1, 2] and row.used() == 3


# Somebody who hangs up must not cost those behind a turn, nor themselves anything.
@in_event_loops  # a thread is not cancelled
def test_who_is_cancelled_leaves_the_queue_and_is_charged_nothing(row):
    row.make([quota(row, 1)])
    row.acquire().result(SOON)
    waiting, done = row.queue(1, 1, 1)
    waiting[1].cancel()
    wait_until(lambda: row.waiting() == 2, SOON, "the queue")
    for position in (0, 2):
        row.call("refund", ALICE)
        assert waiting[position].result(SOON)
    assert done == [0, 2] and row.used() == 1
    row.call("refund", ALICE)
    assert row.used() == 0


# A caller that cannot be served in time must know it now, not after it has waited in vain.
def test_who_cannot_be_served_in_time_is_denied_at_once(row):
    row.make([quota(row, 1)])
    assert row.acquire(timeout=0).result(SOON)
    denied = row.acquire(timeout=0).result(SOON)
    assert (denied.allowed, denied.reason, denied.status) == (False, "over_limit", 429)
    window = timedelta(hours=1) if row.window == "1h" else timedelta(seconds=15)
    assert window * 0.5 < denied.retry_after <= window
    never = row.acquire(cost=2).result(SOON)
    assert never.reason == "over_limit" and never.retry_after is None
    row.queue(1)
    behind = row.acquire(timeout=window.total_seconds()).result(SOON)
    assert behind.reason == "over_limit" and behind.retry_after > window
    assert dict(behind.headers)["retry-after"] and behind.problem["status"] == 429
    assert row.used() == 1


@of_gates
def test_a_full_queue_turns_others_away(row):
    row.make([quota(row, 1)], max_waiting=2)
    row.acquire().result(SOON)
    waiting, _ = row.queue(1, 1)

    def knows_its_turn():
        denied = row.acquire().result(SOON)
        assert (denied.reason, denied.status) == ("queue_full", 429)
        return denied.retry_after > timedelta(hours=2)

    wait_until(knows_its_turn, SOON, "the head's next answer")
    row.call("reset", ALICE)
    assert waiting[0].result(SOON)
    row.call("reset", ALICE)
    assert waiting[1].result(SOON)


def test_several_policies_are_waited_for_and_charged_together(row):
    row.make([quota(row, 1, "small"), quota(row, 2, "large")])
    row.call("penalize", ALICE, policy="large", cost=2)
    row.call("penalize", ALICE, policy="small", cost=1)
    waiting = row.acquire()
    row.call("reset", ALICE, policy="small")
    with pytest.raises(concurrent.futures.TimeoutError):
        waiting.result(0.1)
    row.call("reset", ALICE, policy="large")
    assert waiting.result(SOON)
    assert [one.used for one in row.call("peek", ALICE).policies] == [1, 1]


def test_a_reservation_waits_for_a_place_and_gives_it_back(row):
    row.make([{"name": "streams", "in_flight": 1, "lease": "30s"}])
    first = row.call("reserve", ALICE)
    second = row.begin("acquire_reservation", ALICE, timeout=row.longest, ttl=timedelta(seconds=20))
    third = None
    if not isinstance(row, Served):
        wait_until(lambda: row.waiting() == 1, SOON, "the queue")
        third = row.begin("acquire_reservation", ALICE, timeout=0).result(SOON)
        assert not third and third.decision.reason == "over_limit" and third.ticket is None
    row.call("cancel", first.ticket)
    second = second.result(SOON)
    assert second and second.ttl == pytest.approx(20, abs=1) and row.used() == 1
    assert row.call("settle", second.ticket, 1).outcome == "changed" and row.used() == 0


@of_gates
def test_what_cannot_be_asked_is_an_error(row):
    row.make([quota(row, 1)])
    for options in ({"timeout": -1}, {"timeout": "1"}, {"timeout": None}, {"timeout": True}, {"timeout": float("nan")},
                    {"cost": -1}, {"policy": "typo"}):  # fmt: skip
        with pytest.raises(InvalidRequest):
            row.acquire(**options).result(SOON)
    assert row.used() == 0


@pytest.fixture(params=["limiter", "gate", "shared"])
def of_one(request):
    """A limit of one, what it counts by, and how it is refunded."""
    policies = [{"name": "per-user", "scope": ["user"], "quota": "1/1h"}]
    if request.param == "limiter":
        limit = Limiter("1/1h")
        return limit, "alice", lambda: limit.refund("alice")
    if request.param == "gate":
        limit = Gate(policies)
        return limit, ALICE, lambda: limit.refund(ALICE)
    limit = SharedGate(request.getfixturevalue("redis").url, policies, deadline=PATIENT)
    return limit, ALICE, lambda: limit.refund_sync(ALICE)


# The error says when to come back, or to give up.
def test_a_block_waits_for_its_turn_or_raises(of_one):
    limit, key, refund = of_one
    order = []

    async def main():
        async with limit.turn(key, timeout=0) as decision:
            assert decision and decision.used == 1
        with pytest.raises(RateLimited) as error:
            async with limit.turn(key, timeout=1):
                order.append("never")
        assert error.value.code == "over_limit" and error.value.status == 429
        assert timedelta(minutes=59) < error.value.retry_after == error.value.decision.retry_after

        async def wait(number):
            async with limit.turn(key, timeout=4 * 3600):
                order.append(number)

        tasks = []
        for number in range(3):
            tasks.append(asyncio.ensure_future(wait(number)))
            await asyncio.sleep(0)
            if not isinstance(limit, Limiter):
                await until_async(lambda: limit.waiting == number + 1)
        assert order == []
        for number in range(3):
            refund()
            await asyncio.wait_for(tasks[number], SOON)

    asyncio.run(main())
    assert order == [0, 1, 2]
    with pytest.raises(RateLimited):
        with limit.turn(key, timeout=0):
            order.append("never")
    refund()
    with limit.turn(key, timeout=0), pytest.raises(RateLimited):
        limit.turn(key, timeout=0).__enter__()
    assert order == [0, 1, 2]


def test_a_wrapped_function_waits_and_is_called_as_before(of_one):
    limit, key, refund = of_one

    @limit.wrap(lambda name: key if isinstance(key, dict) else name, timeout=0)
    def double(name):
        """Twice."""
        return name * 2

    @limit.wrap(key, cost=1, timeout=4 * 3600)
    async def fail(name):
        raise ZeroDivisionError(name)

    assert double.__doc__ == "Twice." and double("alice") == "alicealice"
    with pytest.raises(RateLimited):
        double("alice")

    async def main():
        call = asyncio.ensure_future(fail("alice"))
        await asyncio.sleep(0.05)
        assert not call.done()
        refund()
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(call, SOON)

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["gate", "shared"])
def test_a_block_holds_its_place_until_it_ends(kind, request):
    policies = [{"name": "jobs", "scope": ["user"], "in_flight": 1, "lease": "3s"}]
    if kind == "gate":
        gate = Gate(policies)
        held = lambda: gate.peek(ALICE).held  # noqa: E731
    else:
        gate = SharedGate(request.getfixturevalue("redis").url, policies, deadline=PATIENT)
        held = lambda: gate.peek_sync(ALICE).held  # noqa: E731
    running = []

    async def job(number):
        async with gate.turn(ALICE, timeout=60):
            running.append(number)
            assert held() == 1
            if len(running) == 1:
                await asyncio.sleep(4)  # longer than the lease
                assert len(running) == 1
            raise ZeroDivisionError

    async def main():
        return await asyncio.gather(*(job(number) for number in range(3)), return_exceptions=True)

    ended = asyncio.run(main())
    assert [type(error) for error in ended] == [ZeroDivisionError] * 3, ended
    assert sorted(running) == [0, 1, 2] and held() == 0
    with gate.turn(ALICE, timeout=0):
        assert held() == 1
    assert held() == 0


def test_time_that_a_test_advances_is_time_for_those_who_wait():
    clock = ManualClock()
    limiter, gate = Limiter("1/1m", clock=clock), Gate([{"name": "a", "quota": "1/1m"}], clock=clock)

    async def main():
        assert limiter.check("alice") and gate.check({})
        waiting = asyncio.gather(limiter.acquire("alice", timeout=90), gate.acquire({}, timeout=90))
        await asyncio.sleep(0.01)
        clock.advance(timedelta(seconds=59))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        clock.advance(timedelta(seconds=1))
        assert all(await asyncio.wait_for(waiting, SOON))

    asyncio.run(main())


# Who is cancelled in the moment of its turn has not run, so it must not have cost anything either.
@pytest.mark.parametrize("verb", ["acquire", "acquire_reservation", "limiter"])
def test_a_turn_that_nobody_takes_is_given_back(verb):
    limiter, gate = Limiter("1/1h"), Gate([{"name": "a", "quota": "1/1h"}])
    def peek():
        found = limiter.peek("a") if verb == "limiter" else gate.peek({})
        return found.used + found.held


    async def main():
        if verb == "limiter":
            limiter.check("a")
            call = asyncio.ensure_future(limiter.acquire("a", timeout=7200))
        else:
            gate.check({})
            call = asyncio.ensure_future(getattr(gate, verb)({}, timeout=7200))
        await asyncio.sleep(0)
        limiter.refund("a") if verb == "limiter" else gate.refund({})
        wait_until(lambda: peek() == 1, SOON, "the turn")  # while the event loop does not run
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        for _ in range(1000):
            if peek() == 0:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("it was charged")

    asyncio.run(main())


def run_python(code, *arguments, **options):
    code = "import asyncio, os, signal, sys, threading, time\nimport slidegate\n" + textwrap.dedent(code)
    return subprocess.Popen([sys.executable, "-X", "faulthandler", "-c", code, *arguments], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)  # fmt: skip


WAITS = {
    "limiter": 'limit = slidegate.Limiter("1/1h"); key = "a"; peek = limit.peek; limit.check(key)',
    "gate": 'limit = slidegate.Gate([{"name": "a", "quota": "1/1h"}]); key = {}; peek = limit.peek; limit.check(key)',
    "shared": """
patient = slidegate.gate.timedelta(seconds=5)
limit = slidegate.SharedGate(sys.argv[1], [{"name": "a", "quota": "1/1h"}], deadline=patient)
key = {}; peek = limit.peek_sync
limit.check_sync(key)
""",
}


@pytest.fixture(params=WAITS)
def waits(request):
    """A program that limits to one, and its arguments."""
    shared = [request.getfixturevalue("redis").url] if request.param == "shared" else []
    return WAITS[request.param] + "\n", shared


# Ctrl-C must end a program that waits, also one that waits for hours.
def test_a_signal_ends_a_call_that_waits(waits):
    program, arguments = waits
    process = run_python(program + """
signal.signal(signal.SIGINT, signal.default_int_handler)
def report_ready():
    time.sleep(0.2)
    while not getattr(limit, "waiting", 1):
        time.sleep(0.01)
    print("ready", flush=True)
try:
    threading.Thread(target=report_ready).start()
    limit.acquire_sync(key, timeout=7200)
except KeyboardInterrupt:
    print("interrupted", peek(key).used, getattr(limit, "waiting", 0))
""", *arguments)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=SOON)
    assert (process.returncode, out) == (0, "interrupted 1 0\n"), err


@pytest.mark.parametrize("how", ["tasks", "daemon thread"])
def test_the_interpreter_ends_while_calls_wait(waits, how):
    program, arguments = waits
    process = run_python(program + {
        "tasks": """
async def main():
    tasks = [asyncio.ensure_future(limit.acquire(key, timeout=4 * 3600)) for _ in range(3)]
    await asyncio.sleep(0.2)
    assert not any(task.done() for task in tasks)
    print("last words", flush=True)
asyncio.run(main())
""",
        "daemon thread": """
def wait():
    try:
        limit.acquire_sync(key, timeout=7200)
    except slidegate.SlidegateError as error:
        assert error.code == "closed"
threading.Thread(target=wait, daemon=True).start()
time.sleep(0.2)
print("last words", flush=True)
""",
    }[how], *arguments)  # fmt: skip
    out, err = process.communicate(timeout=SOON)
    assert (process.returncode, out) == (0, "last words\n"), err
    for word in ("Fatal Python error", "panicked", "Traceback"):
        assert word not in err


def test_no_turn_is_taken_during_a_fork():
    gate = Gate([{"name": "a", "quota": "1/1h"}])
    gate.check({})
    with concurrent.futures.ThreadPoolExecutor() as threads:
        waiting = threads.submit(gate.acquire_sync, {}, timeout=7200)
        wait_until(lambda: gate.waiting == 1, SOON, "the queue")
        before_fork()
        gate.refund({})
        time.sleep(0.1)
        used = gate.peek({}).used
        after_fork()
        assert waiting.result(SOON) and used == 0


# Servers fork: a lock that is held meanwhile would stay locked in the child forever.
def test_processes_are_forked_while_calls_wait(waits):
    program, arguments = waits
    process = run_python(program + """
ending, refund = threading.Event(), getattr(limit, "refund_sync", limit.refund)
def turns():
    while not ending.is_set():
        assert limit.acquire_sync(key, timeout=7200)
def gives():
    while not ending.is_set():
        refund(key)
threads = [threading.Thread(target=target) for target in [turns, turns, turns, gives]]
for thread in threads:
    thread.start()
for _ in range(100):
    child = os.fork()
    if child == 0:
        peek(key), limit.acquire_sync(key, timeout=0)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
ending.set()
for thread in threads:
    while thread.is_alive():
        refund(key)
        thread.join(0.1)
print("done", flush=True)
""", *arguments)
    out, err = process.communicate(timeout=SOON * 2)
    assert (process.returncode, out) == (0, "done\n"), err
