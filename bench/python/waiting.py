"""What waiting for a turn costs in Python, and what a limit of 100 per second lets through while many wait.

    pip install -r requirements.txt SLIDEGATE-WHEEL && python waiting.py

100 jobs arrive 0.9 s after the limiter was made, 500 more 0.15 s later. `most` is the most that began in any interval
of 0.9 s: a tenth of the window is for jobs that begin late after their turn. Then one caller waits for one turn after
the other, of a limit of one in 20 ms: how late is each?
"""

import asyncio
import time

from aiolimiter import AsyncLimiter

from slidegate import Limiter

LIMIT = 100


def of_slidegate(**options):
    limiter = Limiter("100/1s", **options)

    async def turn():
        assert (await limiter.acquire("key", timeout=60)).allowed

    return turn


def of_aiolimiter():
    return AsyncLimiter(LIMIT, 1).acquire


async def run(turn):
    began = []

    async def job():
        await turn()
        began.append(time.monotonic())

    await asyncio.sleep(0.9)
    jobs = [asyncio.create_task(job()) for _ in range(100)]
    await asyncio.sleep(0.15)
    jobs += [asyncio.create_task(job()) for _ in range(500)]
    await asyncio.gather(*jobs)
    return sorted(began)


def most_at_once(times):
    first = most = 0
    for last, at in enumerate(times):
        while at - times[first] >= 0.9:
            first += 1
        most = max(most, last - first + 1)
    return most


async def main():
    print("| asyncio | most in 0.9 s | from the first to the last, s | CPU us per turn |\n|---|--:|--:|--:|")
    for name, make in {
        "slidegate, exact window": of_slidegate,
        "slidegate, token bucket": lambda: of_slidegate(algorithm="token-bucket", burst=1),
        "aiolimiter": of_aiolimiter,
    }.items():
        before = time.process_time()
        times = await run(make())
        cpu = (time.process_time() - before) / len(times)
        print(f"| {name} | {most_at_once(times)} | {times[-1] - times[0]:.2f} | {cpu * 1e6:.0f} |")
    limiter, times = Limiter("1/20ms"), []
    for _ in range(1000):
        assert (await limiter.acquire("key", timeout=60)).allowed
        times.append(time.monotonic())
    late = sorted(1e3 * (after - before - 0.02) for before, after in zip(times, times[1:]))
    print(f"\nA turn is {late[500]:.2f} ms late at the median, {late[990]:.2f} ms at p99.")


asyncio.run(main())
