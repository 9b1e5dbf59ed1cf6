"""Gates over a real Redis: shared, bounded in time, and in any process."""

import asyncio
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import time
from datetime import timedelta

import pytest
import uvloop
from conftest import PATIENT, Redis, free_port

from slidegate import InvalidRequest, SharedGate, SlidegateError

POLICIES = [{"name": "per-user", "scope": ["user"], "quota": "5/1m", "on_store_error": "deny"}]
TOKENS = [{"name": "tokens", "scope": ["user"], "quota": "1000/1m"}]
ALICE = {"user": "alice"}


@pytest.fixture
def gate(redis):
    return SharedGate(redis.url, POLICIES, deadline=PATIENT)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_gates_share_one_limit_in_event_loops_and_threads(redis, run):
    first, second = (SharedGate(redis.url, POLICIES, deadline=PATIENT) for _ in range(2))

    async def main():
        decisions = await asyncio.gather(*(gate.check(ALICE) for gate in (first, second) for _ in range(50)))
        assert sum(one.allowed for one in decisions) == 5
        assert [one.error for one in decisions if one.error] == []
        denied = await first.check(ALICE)
        assert (denied.reason, denied.status) == ("over_limit", 429) and dict(denied.headers)["retry-after"]
        assert (await first.peek(ALICE)).used == 5
        assert (await first.refund(ALICE, cost=2)).cost == 2
        assert (await second.penalize(ALICE, cost=9)).used == 12
        assert await second.reset(ALICE) is True and await first.reset(ALICE) is False

    run(main())
    run(main())  # another event loop, the same gates
    allowed = []
    threads = [
        threading.Thread(target=lambda: allowed.extend(first.check_sync(ALICE).allowed for _ in range(20)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(allowed) == 5
    assert first.peek_sync(ALICE).used == 5 and first.refund_sync(ALICE).used == 4
    assert first.penalize_sync(ALICE).used == 5 and first.reset_sync(ALICE) is True


def test_an_error_of_the_caller_is_raised_and_nothing_is_asked():
    gate = SharedGate(f"redis://127.0.0.1:{free_port()}", POLICIES)
    for call in (lambda: gate.check_sync(ALICE, policy="typo"), lambda: asyncio.run(gate.check(ALICE, policy="typo"))):
        with pytest.raises(InvalidRequest) as error:
            call()
        assert error.value.code == "unknown_policy"
    with pytest.raises(InvalidRequest):
        gate.check_sync({"user": 7})
    for url in ("", "http://x", "redis://h:x"):
        with pytest.raises(InvalidRequest):
            SharedGate(url, POLICIES)


# A stopped Redis must not stop the application: the deadline, then the policy's fallback.
def test_a_redis_that_does_not_answer_delays_a_decision_by_the_deadline(redis):
    gate = SharedGate(redis.url, POLICIES, deadline=timedelta(seconds=1))
    local = SharedGate(redis.url, TOKENS, deadline=timedelta(seconds=1))
    until = time.monotonic() + 30
    while gate.check_sync(ALICE, cost=0).error or local.check_sync(ALICE, cost=0).error:
        assert time.monotonic() < until, "they are connected"
    assert gate.check_sync(ALICE).error is None
    redis.pause()
    started = time.monotonic()
    denied = asyncio.run(gate.check(ALICE))
    assert 0.99 < time.monotonic() - started < 30
    assert (denied.allowed, denied.reason, denied.status, denied.source) == (False, "store_unavailable", 503, "deny")
    assert denied.error.code == "store" and denied.problem["status"] == 503
    allowed = local.check_sync(ALICE)
    assert allowed and allowed.source == "local" and allowed.error is not None
    redis.resume()
    until = time.monotonic() + 20
    while gate.check_sync(ALICE, cost=0).error is not None:
        assert time.monotonic() < until, "it did not recover"
    assert gate.peek_sync(ALICE).used <= 2


def test_a_restarted_redis_is_found_again(redis, gate):
    assert gate.check_sync(ALICE).used == 1
    redis.stop()
    assert gate.check_sync(ALICE).reason == "store_unavailable"
    redis.start()
    until = time.monotonic() + 20
    while gate.check_sync(ALICE).error is not None:
        assert time.monotonic() < until, "it did not recover"


def test_a_cancelled_call_is_ignored_and_the_next_one_answered(redis, gate):
    async def main():
        assert (await gate.check(ALICE)).used == 1
        redis.pause()
        call = asyncio.ensure_future(gate.check(ALICE))
        await asyncio.sleep(0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        redis.resume()
        assert (await asyncio.wait_for(gate.check({"user": "bob"}), 5)).error is None

    asyncio.run(main())


def test_a_result_for_a_closed_event_loop_is_dropped(redis, gate):
    loop = asyncio.new_event_loop()
    gate.check_sync(ALICE)
    redis.pause()
    task = loop.create_task(gate.check(ALICE))
    loop.run_until_complete(asyncio.sleep(0.05))
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()
    redis.resume()
    assert asyncio.run(gate.peek(ALICE)).error is None


def test_reservations_are_settled_by_any_process(redis):
    gate = SharedGate(redis.url, TOKENS, deadline=PATIENT)
    other = SharedGate(redis.url, TOKENS, deadline=PATIENT)

    async def main():
        async with await gate.reserve(ALICE, cost=600) as reservation:
            assert reservation and not await other.reserve(ALICE, cost=600)
            assert (await other.settle_so_far(reservation.ticket, 50)).outcome == "changed"
            assert (await reservation.extend(timedelta(minutes=2))).outcome == "changed"
            reservation.record(120)
        assert ((await gate.peek(ALICE)).used, (await gate.peek(ALICE)).held) == (120, 0)
        with pytest.raises(asyncio.CancelledError):
            async with await gate.reserve(ALICE, cost=600) as reservation:
                reservation.record(30)
                raise asyncio.CancelledError
        assert (await gate.peek(ALICE)).used == 150
        ticket = (await gate.reserve(ALICE, cost=5)).ticket
        assert (await gate.cancel(ticket)).outcome == "changed"
        assert (await gate.settle(ticket, 5)).outcome == "already_settled"

    asyncio.run(main())
    with gate.reserve_sync(ALICE, cost=300) as reservation:
        assert other.settle_sync(reservation.ticket, 10).outcome == "changed"
    assert gate.peek_sync(ALICE).used == 160
    ticket = gate.reserve_sync(ALICE, cost=5).ticket
    assert gate.extend_sync(ticket, hold=7).outcome == "changed"
    assert gate.settle_so_far_sync(ticket, 1).outcome == "changed" and gate.cancel_sync(ticket).outcome == "changed"


def test_policies_are_replaced_also_before_the_first_call(redis, gate):
    gate.configure([{"name": "per-user", "scope": ["user"], "quota": "1/1m"}])
    assert gate.check_sync(ALICE) and not gate.check_sync(ALICE)
    gate.configure(POLICIES)
    assert gate.check_sync(ALICE).used == 2


def ask(gate, queue):
    queue.put((gate.check_sync(ALICE).used, asyncio.run(gate.check(ALICE)).used))


# Servers fork workers, with gates that were made and used before.
def test_forked_processes_use_gates_of_their_parent(redis, gate):
    assert gate.check_sync(ALICE).used == 1 and asyncio.run(gate.check(ALICE)).used == 2
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=ask, args=(gate, queue))
    process.start()
    assert queue.get(timeout=20) == (3, 4)
    process.join(20)
    assert process.exitcode == 0 and gate.check_sync(ALICE).used == 5


def test_a_fork_within_an_event_loop_and_with_calls_in_flight(redis, gate):
    async def main():
        calls = [asyncio.ensure_future(gate.check({"user": f"user-{number}"})) for number in range(50)]
        await asyncio.sleep(0)
        child = os.fork()
        if child == 0:
            # The event loop of the parent is not to be used; a new one is.
            asyncio._set_running_loop(None)
            status = 1
            try:
                status = 0 if asyncio.run(gate.check(ALICE)).used == 1 and gate.check_sync(ALICE).used == 2 else 2
            finally:
                os._exit(status)
        assert not any(one.error for one in await asyncio.gather(*calls))
        return child

    child = asyncio.run(main())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert gate.check_sync(ALICE).used == 3


def run_python(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code), *arguments],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return done.returncode, done.stdout.strip(), done.stderr.strip()


# A program must end as if nothing were open: with its own exit code, soon, and without a crash. The interpreter may say
# something about threads that it ends.
@pytest.mark.parametrize("end", ["pass", "sys.exit(0)", "raise SystemExit(0)", "gate_of_thread()"])
def test_the_interpreter_ends_with_calls_pending(redis, end):
    code = f"""
        import asyncio, sys, threading, slidegate
        gate = slidegate.SharedGate(sys.argv[1], [{{"name": "a", "quota": "1000000/1m"}}])
        async def forever():
            while True:
                await asyncio.gather(*(gate.check({{}}) for _ in range(100)))
        def until_closed():
            try:
                asyncio.run(forever())
            except slidegate.SlidegateError as error:
                if error.code != "closed": raise
        def gate_of_thread():
            threading.Thread(target=until_closed, daemon=True).start()
            for _ in range(100): gate.check_sync({{}})
        async def main():
            pending = [asyncio.ensure_future(gate.check({{}})) for _ in range(500)]
            await asyncio.sleep(0.01)
            {end if "thread" not in end else "pass"}
        asyncio.run(main())
        {end}
        print("last words")
    """
    status, out, err = run_python(code, redis.url)
    assert (status, out) == (0, "" if "xit" in end else "last words"), err
    for word in ["Fatal Python error", "panicked", "SlidegateError"]:
        assert word not in err


# Python ends daemon threads where they ask for the GIL, which is mostly within what a call of ours calls: servers run
# requests in such threads.
@pytest.mark.parametrize(
    "call",
    [
        "gate.check({'user': 'a'})",
        "gate.check(collections.UserDict(user='a'))",
        "limiter.allows(1)",
        "limiter.check('a').problem",
        "shared.check_sync({})",
        "asyncio.run(in_a_loop())",
    ],
)
def test_the_interpreter_ends_with_daemon_threads_in_calls(redis, call):
    code = f"""
        import asyncio, collections, sys, threading, time, slidegate
        sys.setswitchinterval(1e-6)  # so that threads ask for the GIL all the time
        limiter = slidegate.Limiter("1/1m")
        gate = slidegate.Gate([{{"name": "a", "scope": ["user"], "quota": "5/1m"}}])
        shared = slidegate.SharedGate(sys.argv[1], [{{"name": "a", "quota": "5/1m"}}])
        calls = 0
        async def in_a_loop():
            global calls
            while True:
                await asyncio.gather(*(shared.check({{}}) for _ in range(100)))
                calls += 1
        def forever():
            global calls
            while True:
                try:
                    {call}
                except slidegate.SlidegateError as error:
                    if error.code not in ["closed", "invalid_request"]: raise
                calls += 1
        for _ in range(4): threading.Thread(target=forever, daemon=True).start()
        while calls < 100: time.sleep(0.01)
        print("last words")
    """
    status, out, err = run_python(code, redis.url)
    assert (status, out) == (0, "last words"), err


def test_calls_after_the_end_are_errors(redis):
    code = """
        import atexit, sys, slidegate
        def last():
            try:
                gate.check_sync({})
            except slidegate.SlidegateError as error:
                print(error.code)
        atexit.register(last)  # runs after what was registered later
        import slidegate.gate
        gate = slidegate.SharedGate(sys.argv[1], [{"name": "a", "quota": "10/1m"}])
        gate.check_sync({})
    """
    code = code.replace("import atexit, sys, slidegate\n", "import atexit, sys\n").replace("        import slidegate.gate", "        import slidegate")
    status, out, err = run_python(code, redis.url)
    assert (status, out, err) == (0, "closed", "")


def test_a_sub_interpreter_is_refused():
    names = {12: "_xxsubinterpreters", 11: "_xxsubinterpreters", 10: "_xxsubinterpreters"}
    module = names.get(sys.version_info.minor, "_interpreters")
    code = f"""
        import {module} as interpreters
        import slidegate
        one = interpreters.create()
        try:
            found = interpreters.run_string(one, "import slidegate._slidegate")
            print("refused" if found is not None else "imported")
        except Exception as error:
            print("refused" if "subinterpreter" in str(error) or "interpreters" in str(error) else error)
        interpreters.destroy(one)
        assert slidegate.Limiter("1/1m").allows("alice")
    """
    assert run_python(code) == (0, "refused", "")


# The GIL is not held during a call to Redis, nor is a call late because another thread has it.
def test_busy_threads_do_not_make_calls_late(redis, gate):
    gate.check_sync({"user": "x"})
    stop = threading.Event()

    def spin():
        while not stop.is_set():
            sum(range(1000))

    threads = [threading.Thread(target=spin) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        strict = SharedGate(redis.url, [{"name": "p", "scope": ["user"], "quota": "100000/1m"}], deadline=PATIENT)
        strict.check_sync(ALICE)

        async def main():
            for _ in range(20):
                decisions = await asyncio.gather(*(strict.check({"user": str(n)}) for n in range(20)))
                assert not any(one.error for one in decisions)

        asyncio.run(main())
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_panic_is_an_ordinary_exception():
    # Costs by more names than a request may have.
    gate = SharedGate(f"redis://127.0.0.1:{free_port()}", TOKENS)
    try:
        gate.check_sync(ALICE, cost={f"c{number}": 1 for number in range(1000)})
    except Exception as error:
        assert isinstance(error, SlidegateError)


def test_redis_is_of_this_test_only(tmp_path):
    redis = Redis(tmp_path)
    gate = SharedGate(redis.url, POLICIES, deadline=PATIENT)
    assert gate.check_sync(ALICE).used == 1
    redis.stop()
    assert gate.check_sync(ALICE).error.code == "store"
