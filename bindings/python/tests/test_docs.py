"""The programs of docs/python.md and of both README.md run as they are written, but for addresses and deadlines; the example serves."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from conftest import PATIENT, REPOSITORY, accepts, free_port, wait_until

PAGES = [REPOSITORY / "docs" / "python.md", REPOSITORY / "README.md", Path(__file__).parents[1] / "README.md"]
#: Asks the application of a program, if it has one, until it denies.
ASK = """
if "app" in globals():
    import flask
    if isinstance(app, flask.Flask):
        ask = lambda: app.test_client().get("/").status_code
    else:
        import starlette.testclient
        ask = lambda: starlette.testclient.TestClient(app, client=("192.0.2.7", 1)).get("/").status_code
    statuses = [ask() for _ in range(101)]
    assert 200 in statuses and set(statuses) <= {200, 429}, statuses
    assert 429 in statuses or "reserve" in SOURCE, statuses
"""


def patient(program):
    """With the deadline of tests for its store."""
    deadline = f"__import__('datetime').timedelta(seconds={PATIENT.total_seconds()})"
    return program.replace("SharedGate(", f"__import__('functools').partial(SharedGate, deadline={deadline})(")


def programs():
    for page in PAGES:
        for number, program in enumerate(re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.M | re.S)):
            yield pytest.param(program, id=f"{page.name}-{number}")


@pytest.mark.parametrize("program", programs())
def test_a_program_of_the_docs_runs(program, redis, service, tmp_path):
    source = patient(program).replace("redis://127.0.0.1:6379", redis.url).replace("http://127.0.0.1:7979", service.url)
    path = tmp_path / "program.py"
    path.write_text(f"SOURCE = {source!r}\n{source}\n{ASK}")
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    for printed in re.findall(r"print\(.*\)  # (\S+)$", program, re.M):
        assert printed in done.stdout.split()


@pytest.mark.parametrize("store", ["memory", "redis"])
def test_the_example_serves(store, redis, tmp_path):
    example = Path(__file__).parents[1] / "example" / "app.py"
    (tmp_path / "app.py").write_text(patient(example.read_text()))
    port = free_port()
    environment = os.environ | ({"REDIS_URL": redis.url} if store == "redis" else {})
    server = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "app:app", "--port", str(port), "--log-level", "warning"],
        cwd=tmp_path,
        env=environment,
    )
    try:
        wait_until(lambda: accepts(port), 30, "the example")
        client = httpx.Client(base_url=f"http://127.0.0.1:{port}", headers={"x-user": "alice"})
        assert client.get("/healthz").json() == "ok"
        assert client.get("/chat", params={"words": 7}).text == "word " * 7
        until = time.monotonic() + 5
        while (usage := client.get("/usage").json())["tokens"]["used"] != 17:
            assert time.monotonic() < until, usage  # it is settled after the last byte was sent
        assert usage["streams"]["held"] == 0 and usage["tokens"]["held"] == 0
        statuses = [client.get("/chat", params={"words": 1}).status_code for _ in range(20)]
        assert statuses[0] == 200 and statuses[-1] == 429
        denied = client.get("/chat")
        assert denied.json()["status"] == 429 and int(denied.headers["retry-after"]) > 0
    finally:
        server.terminate()
        assert server.wait(20) in (0, -15)


def test_gunicorn_workers_share_a_limit_that_was_made_before_the_fork(redis, tmp_path):
    port = free_port()
    (tmp_path / "app.py").write_text(
        f"""
import os
from datetime import timedelta
from slidegate import SharedGate
from slidegate.wsgi import RateLimit
gate = SharedGate("{redis.url}", [{{"name": "all", "quota": "20/1m"}}], deadline=timedelta(seconds=5))
assert gate.check_sync({{}}).used == 1  # used before the fork
def pid(environ, start_response):
    start_response("200 OK", [("content-type", "text/plain")])
    return [str(os.getpid()).encode()]
app = RateLimit(pid, gate)
"""
    )
    server = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", "--preload", "-w", "3", "-b", f"127.0.0.1:{port}", "--log-level", "error", "app:app"],
        cwd=tmp_path,
    )
    try:
        wait_until(lambda: accepts(port), 30, "gunicorn")
        answers = [httpx.get(f"http://127.0.0.1:{port}/") for _ in range(40)]
        assert [one.status_code for one in answers].count(200) == 19
        assert len({one.text for one in answers if one.status_code == 200}) > 1
    finally:
        server.terminate()
        assert server.wait(20) == 0
