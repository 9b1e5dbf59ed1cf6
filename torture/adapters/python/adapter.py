"""Adapters of rate limiters in Python: `adapter.py NAME` speaks lines on standard input and output.

A limiter is a function that returns its package, what it can do and its decision: from a key and a
cost to an answer, "+", "- " followed by milliseconds, or "-". Functions run in 16 threads;
coroutines each in a task of one event loop.
"""

import asyncio
import inspect
import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from importlib.metadata import version

LIMIT, WINDOW_MS = int(os.environ["LIMIT"]), int(os.environ["WINDOW_MS"])
SECOND = (
    (int(os.environ["LIMIT2"]), int(os.environ["WINDOW2_MS"])) if "LIMIT2" in os.environ else None
)
LIMITS = [(LIMIT, WINDOW_MS)] + ([SECOND] if SECOND else [])
MAX_KEYS = int(os.environ["MAX_KEYS"]) if "MAX_KEYS" in os.environ else None
REDIS = os.environ.get("REDIS")


def answer(admitted, wait_ms=None):
    if admitted:
        return "+ "
    return "-" if wait_ms is None else f"- {wait_ms}"


def limits_with(strategy, shared=False):
    import limits
    from limits.strategies import STRATEGIES

    storage = limits.storage.storage_from_string(REDIS if shared else "memory://")
    limiter = STRATEGIES[strategy](storage)
    item = limits.RateLimitItemPerSecond(LIMIT, WINDOW_MS // 1000)

    def decide(key, cost):
        if limiter.hit(item, key, cost=cost):
            return answer(True)
        reset_time, _ = limiter.get_window_stats(item, key)
        return answer(False, max(0, reset_time - time.time()) * 1000)

    return "limits", ["cost", "wait"], decide


def flask_limiter():
    from flask import Flask, request
    from flask_limiter import Limiter

    app = Flask(__name__)
    Limiter(
        lambda: request.headers["x-user"],
        app=app,
        default_limits=[f"{limit} per {window_ms // 1000} second" for limit, window_ms in LIMITS],
        default_limits_cost=lambda: int(request.headers["x-cost"]),
        storage_uri="memory://",
        headers_enabled=True,
    )
    app.add_url_rule("/", view_func=lambda: "hello")
    clients = threading.local()

    def decide(key, cost):
        if not hasattr(clients, "own"):
            clients.own = app.test_client(use_cookies=False)
        response = clients.own.get("/", headers={"x-user": key, "x-cost": str(cost)})
        if response.status_code not in (200, 429):
            raise RuntimeError(response.status)
        return answer(response.status_code == 200, int(response.headers["retry-after"]) * 1000)

    return "Flask-Limiter", ["cost", "wait", "several"], decide


def django_ratelimit():
    import django
    from django.conf import settings

    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": REDIS}
    settings.configure(CACHES={"default": cache})
    django.setup()
    from django.test import RequestFactory
    from django_ratelimit.core import get_usage

    requests, rate = RequestFactory(), f"{LIMIT}/{WINDOW_MS // 1000}s"

    def decide(key, cost):
        request = requests.get("/", HTTP_X_USER=key)
        usage = get_usage(request, group="torture", key="header:x-user", rate=rate, increment=True)
        if usage["limit"] == 0:
            raise RuntimeError("the cache has no count")
        return answer(not usage["should_limit"], max(0, usage["time_left"]) * 1000)

    return "django-ratelimit", ["wait"], decide


def pyrate_limiter(make_bucket, asynchronous=False):
    import pyrate_limiter as pyrate

    rates = [pyrate.Rate(limit, window_ms) for limit, window_ms in LIMITS]

    class PerName(pyrate.BucketFactory):  # as in its README
        def __init__(self):
            self.clock, self.buckets = pyrate.MonotonicClock(), {}

        def wrap_item(self, name, weight=1):
            return pyrate.RateItem(name, self.clock.now(), weight=weight)

        def get(self, item):
            if item.name not in self.buckets:
                self.buckets[item.name] = self.create(*make_bucket(pyrate, rates))
            return self.buckets[item.name]

    limiter = pyrate.Limiter(PerName())

    def decide(key, cost):
        return answer(limiter.try_acquire(key, weight=cost, blocking=False))

    async def decide_async(key, cost):
        return answer(await limiter.try_acquire_async(key, weight=cost, blocking=False))

    return "pyrate-limiter", ["cost", "several"], decide_async if asynchronous else decide


def sliding_window_log(pyrate, rates):
    return pyrate.InMemoryBucket, rates


def wrapped_log(pyrate, rates):
    return pyrate.BucketAsyncWrapper, pyrate.InMemoryBucket(rates)


def fixed_window(pyrate, rates):
    return pyrate.InMemoryBucket, rates, pyrate.FixedWindow()


def token_bucket(pyrate, rates):
    return pyrate.StateBucket, rates, pyrate.TokenBucket()


def aiolimiter():
    from aiolimiter import AsyncLimiter

    limiters = {}

    async def decide(key, cost):
        if key not in limiters:
            limiters[key] = AsyncLimiter(LIMIT, WINDOW_MS / 1000)
        if not limiters[key].has_capacity(cost):
            return answer(False)
        await limiters[key].acquire(cost)  # does not wait: nothing ran since
        return answer(True)

    return "aiolimiter", ["cost"], decide


def redis_backend():
    import redis.asyncio
    from throttlekit import RedisBackend

    # Each open request has a connection of its own; by default redis-py raises after 100.
    return RedisBackend(redis.asyncio.from_url(REDIS, max_connections=256))


def throttlekit_token_bucket():
    from throttlekit import DistributedTokenBucket

    limiter = DistributedTokenBucket(redis_backend(), LIMIT, refill_interval=WINDOW_MS / 1000)

    async def decide(key, cost):
        return answer(await limiter.acquire(key=key, tokens=cost, block=False))

    return "throttlekit", ["cost"], decide


def throttlekit_leaky_bucket():
    from throttlekit import DistributedLeakyBucket

    rate = LIMIT * 1000 / WINDOW_MS
    limiter = DistributedLeakyBucket(redis_backend(), rate, max_queue_size=LIMIT)

    async def decide(key, cost):
        return answer(await limiter.acquire(key=key, block=False))

    return "throttlekit", [], decide


def slidegate_with(shared=False, asynchronous=False):
    import slidegate

    policies = [
        {"name": f"per-{window_ms}ms", "scope": ["user"], "quota": f"{limit}/{window_ms}ms"}
        for limit, window_ms in LIMITS
    ]
    if shared:
        gate = slidegate.SharedGate(REDIS, policies)
    elif SECOND:
        gate = slidegate.Gate(policies, max_keys=MAX_KEYS)
    else:
        limiter = slidegate.Limiter(policies[0]["quota"], max_keys=MAX_KEYS)

    def answer_of(decision):
        wait = decision.retry_after
        return answer(decision.allowed, None if wait is None else wait / timedelta(milliseconds=1))

    def check(key, cost):
        if shared:
            return answer_of(gate.check_sync({"user": key}, cost=cost))
        return answer_of(gate.check({"user": key}, cost=cost) if SECOND else limiter.check(key, cost))

    async def check_async(key, cost):
        return answer_of(await gate.check({"user": key}, cost=cost)) if shared else check(key, cost)

    can = ["cost", "wait", "several"] + ([] if shared else ["max_keys"])
    return "slidegate", can, check_async if asynchronous else check


LIMITERS = {
    "limits-fixed-window": lambda: limits_with("fixed-window"),
    "limits-moving-window": lambda: limits_with("moving-window"),
    "limits-sliding-window-counter": lambda: limits_with("sliding-window-counter"),
    "limits-moving-window-redis": lambda: limits_with("moving-window", shared=True),
    "limits-sliding-window-counter-redis": lambda: limits_with(
        "sliding-window-counter", shared=True
    ),
    "flask-limiter": flask_limiter,
    "django-ratelimit": django_ratelimit,
    "pyrate-limiter": lambda: pyrate_limiter(sliding_window_log),
    "pyrate-limiter-asyncio": lambda: pyrate_limiter(wrapped_log, asynchronous=True),
    "pyrate-limiter-fixed-window": lambda: pyrate_limiter(fixed_window),
    "pyrate-limiter-token-bucket": lambda: pyrate_limiter(token_bucket),
    "aiolimiter": aiolimiter,
    "throttlekit-token-bucket": throttlekit_token_bucket,
    "throttlekit-leaky-bucket": throttlekit_leaky_bucket,
    "slidegate-python": slidegate_with,
    "slidegate-python-asyncio": lambda: slidegate_with(asynchronous=True),
    "slidegate-python-redis": lambda: slidegate_with(shared=True),
    "slidegate-python-redis-asyncio": lambda: slidegate_with(shared=True, asynchronous=True),
}


def write(line):
    # One call for each: the lines of threads stay whole.
    os.write(1, (" ".join(line.splitlines()) + "\n").encode())


def failed(number, error):
    write(f"{number} ! {type(error).__name__}: {error}"[:500])


def serve_threads(decide):
    def serve(number, key, cost):
        try:
            write(f"{number} {decide(key, int(cost))}")
        except Exception as error:
            failed(number, error)

    with ThreadPoolExecutor(16) as pool:
        for line in sys.stdin:
            pool.submit(serve, *line.split())


async def serve_tasks(decide):
    async def serve(number, key, cost):
        try:
            write(f"{number} {await decide(key, int(cost))}")
        except Exception as error:
            failed(number, error)

    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    tasks = set()  # the event loop alone does not keep them
    while line := await reader.readline():
        task = asyncio.create_task(serve(*line.decode().split()))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)


def main():
    try:
        package, can, decide = LIMITERS[sys.argv[1]]()
        write(json.dumps({"version": version(package), "can": can}))
    except Exception as error:
        write(json.dumps({"error": f"{type(error).__name__}: {error}"}))
        return
    if inspect.iscoroutinefunction(decide):
        asyncio.run(serve_tasks(decide))
    else:
        serve_threads(decide)


if __name__ == "__main__":
    main()
