"""What a decision costs in Python, and what a limit of 100 lets through: slidegate and `limits`.

    python bench/python/compare.py [redis://127.0.0.1:6379]

Needs the package slidegate and requirements.txt. CPU is this process's, all threads, per decision; the median of
rounds that alternate between the candidates. Without a URL, only memory is measured.
"""

import asyncio
import statistics
import sys
import time

import limits
from limits.strategies import (
    FixedWindowRateLimiter,
    MovingWindowRateLimiter,
    SlidingWindowCounterRateLimiter,
)

import slidegate
import slidegate.limits

ROUNDS = 9
LIMIT, WINDOW_S = 100, 2
POLICIES = [{"name": "bench", "scope": ["user"], "quota": "1000000000/1h"}]


class Empty:
    def allows(self, key):
        return True


def cpu_ns(run, count):
    started = time.process_time_ns()
    run(count)
    return (time.process_time_ns() - started) / count


def loop_of(call):
    def run(count):
        for _ in range(count):
            call()

    return run


def async_loop_of(call, loop, width):
    async def some(count):
        for _ in range(count // width):
            await asyncio.gather(*(call() for _ in range(width)))

    return lambda count: loop.run_until_complete(some(count))


def report(title, candidates, count):
    print(f"\n{title}, CPU ns per decision\n")
    found = {name: [] for name in candidates}
    for run in candidates.values():
        run(count // 10 or 1)
    for _ in range(ROUNDS):
        for name, run in candidates.items():
            found[name].append(cpu_ns(run, count))
    for name, values in found.items():
        print(f"| {name} | {statistics.median(values):,.0f} |")


def strategies(storage):
    item = limits.parse("1000000000/hour")
    return {
        "limits, fixed window": loop_of(lambda s=FixedWindowRateLimiter(storage): s.hit(item, "alice")),
        "limits, sliding window counter": loop_of(lambda s=SlidingWindowCounterRateLimiter(storage): s.hit(item, "alice")),
    }


def moving(storage, text):
    # The moving window keeps every entry, so it is measured at limits that it can keep.
    strategy, item = MovingWindowRateLimiter(storage), limits.parse(text)
    return loop_of(lambda: strategy.hit(item, "alice"))


def memory():
    limiter, empty = slidegate.Limiter("1000000000/1h"), Empty()
    small = slidegate.Limiter("1000/1s")
    gate = slidegate.Gate(POLICIES)
    ours = slidegate.limits.SlidegateStorage()
    theirs = limits.storage.MemoryStorage()
    report(
        "In memory",
        {
            "an empty method in Python": loop_of(lambda: empty.allows("alice")),
            "slidegate, Limiter.allows": loop_of(lambda: limiter.allows("alice")),
            "slidegate, Limiter.allows, 1000 per s": loop_of(lambda: small.allows("alice")),
            "slidegate, Limiter.check": loop_of(lambda: limiter.check("alice")),
            "slidegate, Gate.check, one policy, with header fields": loop_of(lambda: gate.check({"user": "alice"})),
            "limits over slidegate, moving window, 1000 per s": moving(ours, "1000/second"),
            "limits, moving window, 1000 per s": moving(theirs, "1000/second"),
            **strategies(theirs),
        },
        20_000,
    )


def redis(url):
    loop = asyncio.new_event_loop()
    gate = slidegate.SharedGate(url, POLICIES)
    theirs = limits.storage.RedisStorage(url)
    theirs.storage.flushdb()
    report(
        "Over Redis",
        {
            "slidegate, check_sync": loop_of(lambda: gate.check_sync({"user": "alice"})),
            "slidegate, check, one after the other": async_loop_of(lambda: gate.check({"user": "alice"}), loop, 1),
            "slidegate, check, 100 at once": async_loop_of(lambda: gate.check({"user": "alice"}), loop, 100),
            "limits, moving window, 1000 per s": moving(theirs, "1000/second"),
            **strategies(theirs),
        },
        1_000,
    )
    theirs.storage.flushdb()


def most_in_a_window(allows):
    """One request, most of the others just before the window of that one ends, and the rest just after."""
    admitted = [time.monotonic()] if allows() else []
    start = time.monotonic()
    for at in (0.9, 1.02):
        time.sleep(max(0.0, start + at * WINDOW_S - time.monotonic()))
        for _ in range(2 * LIMIT):
            now = time.monotonic()
            if allows():
                admitted.append(now)
    return max(sum(one <= other < one + WINDOW_S for other in admitted) for one in admitted)


def exactness(storages):
    item = limits.parse(f"{LIMIT}/{WINDOW_S} seconds")
    limiter = slidegate.Limiter(f"{LIMIT}/{WINDOW_S}s")
    print(f"\nAdmitted within one window at a limit of {LIMIT}\n")
    print(f"| slidegate, Limiter | {most_in_a_window(lambda: limiter.allows('alice'))} |")
    for name, storage in storages.items():
        for kind in (MovingWindowRateLimiter, SlidingWindowCounterRateLimiter, FixedWindowRateLimiter):
            strategy = kind(storage)
            allows = lambda: strategy.hit(item, kind.__name__)  # noqa: B023, E731
            print(f"| limits, {kind.__name__.removesuffix('RateLimiter')}, {name} | {most_in_a_window(allows)} |")


def main():
    url = sys.argv[1] if len(sys.argv) > 1 else None
    memory()
    storages = {"memory": limits.storage.MemoryStorage()}
    if url:
        redis(url)
        storages["Redis"] = limits.storage.RedisStorage(url)
    exactness(storages)


if __name__ == "__main__":
    main()
