"""Middleware that waits: every framework, over everything that limits."""

import asyncio
import concurrent.futures
import time

import django.core.asgi
import django.test
import fastapi
import flask
import pytest
import starlette.testclient
import test_middleware  # configures Django
from conftest import PATIENT, Service, until_async, wait_until
from starlette.responses import PlainTextResponse

import slidegate.asgi
import slidegate.django
import slidegate.drf
import slidegate.fastapi
import slidegate.wsgi
from slidegate import Gate, InvalidRequest, Limiter, SharedGate
from slidegate.client import AsyncClient, Client

IP = "127.0.0.1"  # what the test clients of Django have
POLICIES = [{"name": "per-ip", "scope": ["ip"], "quota": "1/20s"}]
SOON = 30
#: Longer than the window: a turn in exactly one may be a moment too late, and is denied at once.
WAIT = 2 * 3600


def over_asgi(limit, wait):
    app = test_middleware.app_of(test_middleware.hello)
    app.add_middleware(slidegate.asgi.RateLimit, limit=limit, wait=wait)
    return lambda: starlette.testclient.TestClient(app, client=(IP, 1)).get("/hello").status_code


def over_fastapi(limit, wait):
    app = fastapi.FastAPI()

    @app.post("/", dependencies=[fastapi.Depends(slidegate.fastapi.rate_limit(limit, wait=wait))])
    async def home(request: fastapi.Request):
        return (await request.body()).decode()

    def ask():
        answer = starlette.testclient.TestClient(app, client=(IP, 1)).post("/", content="body")
        assert answer.status_code != 200 or answer.json() == "body"
        return answer.status_code

    return ask


def over_wsgi(limit, wait):
    app = flask.Flask("app")
    app.add_url_rule("/", view_func=lambda: "hello")
    app.wsgi_app = slidegate.wsgi.RateLimit(app.wsgi_app, limit, wait=wait)
    return lambda: app.test_client().get("/", environ_base={"REMOTE_ADDR": IP}).status_code


def over_django(limit, wait):
    return lambda: django.test.Client().get("/view", REMOTE_ADDR=IP).status_code


def over_django_async(limit, wait):
    async def ask():
        return (await django.test.AsyncClient().get("/async")).status_code

    return lambda: asyncio.run(ask())


def over_drf(limit, wait):
    return lambda: django.test.Client().get("/throttled", REMOTE_ADDR=IP).status_code


FRAMEWORKS = {one.__name__[5:]: one for one in (over_asgi, over_fastapi, over_wsgi, over_django, over_django_async, over_drf)}
IN_EVENT_LOOPS = ("asgi", "fastapi", "django_async")


@pytest.fixture(params=["limiter", "gate", "shared", "service"])
def limits(request):
    """A limit of one for threads and one for event loops, how it is used up or freed, and how many wait, if it says."""
    if request.param == "limiter":
        limit = Limiter("1/20s")
        return limit, limit, lambda verb: getattr(limit, verb)(IP), None
    if request.param == "service":
        service = Service(request.getfixturevalue("tmp_path"), '  - {name: per-ip, scope: [ip], quota: 1/20s}')
        request.addfinalizer(service.stop)
        client = Client(service.url, timeout=10)
        return client, AsyncClient(service.url, timeout=10), lambda verb: getattr(client, verb)({"ip": IP}), None
    if request.param == "gate":
        gate = Gate(POLICIES)
        return gate, gate, lambda verb: getattr(gate, verb)({"ip": IP}), lambda: gate.waiting
    url = request.getfixturevalue("redis").url
    gate = SharedGate(url, POLICIES, deadline=PATIENT)
    return gate, gate, lambda verb: getattr(gate, f"{verb}_sync")({"ip": IP}), lambda: gate.waiting


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_request_waits_for_its_turn_or_is_denied(framework, limits, monkeypatch):
    of_threads, of_loops, call, waiting = limits
    limit = of_loops if framework in IN_EVENT_LOOPS else of_threads
    for wait in (0, 50):
        monkeypatch.delattr(slidegate.drf.Throttle, "_rule", raising=False)
        own = ["slidegate.django.RateLimit"] if framework.startswith("django") else []
        with django.test.override_settings(SLIDEGATE={"limit": limit, "wait": wait}, MIDDLEWARE=own):
            ask = FRAMEWORKS[framework](limit, wait)
            call("reset")
            assert ask() == 200
            if wait == 0:
                assert ask() == 429
                continue
            with concurrent.futures.ThreadPoolExecutor(1) as threads:
                response = threads.submit(ask)
                if waiting is not None:
                    wait_until(lambda: waiting() == 1, SOON, "the queue")
                    assert not response.done()
                started = time.monotonic()
                call("refund")
                assert response.result(SOON) == 200 and time.monotonic() - started < 15
    assert call("peek").used == 1


def scope_of(path="/"):
    return {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
            "headers": [], "client": (IP, 1), "server": ("127.0.0.1", 80), "scheme": "http", "http_version": "1.1",
            "asgi": {"version": "3.0"}}  # fmt: skip


class Peer:
    """A client that sends a body in pieces, and disconnects on demand."""

    def __init__(self, *pieces):
        self.messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces[:-1]]
        self.messages.append({"type": "http.request", "body": pieces[-1], "more_body": False})
        self.gone = asyncio.Event()
        self.sent = []

    async def receive(self):
        if self.messages:
            return self.messages.pop(0)
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.sent.append(message)


def applications(limit, seen):
    async def app(scope, receive, send):
        request = starlette.requests.Request(scope, receive)
        seen.append(await request.body())
        await PlainTextResponse("hello")(scope, receive, send)

    api = fastapi.FastAPI()

    @api.post("/", dependencies=[fastapi.Depends(slidegate.fastapi.rate_limit(limit, wait=WAIT))])
    async def home(request: fastapi.Request):
        seen.append(await request.body())

    return {"asgi": slidegate.asgi.RateLimit(app, limit, wait=WAIT), "fastapi": api}


# Who hangs up must not take a turn from somebody who still waits.
@pytest.mark.parametrize("framework", ["asgi", "fastapi", "django"])
def test_a_client_that_disconnects_leaves_the_queue(framework):
    gate, seen = Gate([{"name": "all", "quota": "1/1h"}]), []

    async def main():
        app = applications(gate, seen).get(framework) or django.core.asgi.get_asgi_application()
        peer = Peer(b"body")
        gate.check({})
        request = asyncio.ensure_future(app(scope_of("/async" if framework == "django" else "/"), peer.receive, peer.send))
        await until_async(lambda: gate.waiting == 1)
        peer.gone.set()
        await asyncio.wait_for(asyncio.gather(request, return_exceptions=True), SOON)
        await until_async(lambda: gate.waiting == 0)

    with django.test.override_settings(MIDDLEWARE=["slidegate.django.RateLimit"], SLIDEGATE={"limit": gate, "wait": WAIT}):
        asyncio.run(main())
    assert seen == [] and gate.peek({}).used == 1
    assert gate.refund({}).used == 0


# The body is read to see whether the client is still there, and must be there for the application.
@pytest.mark.parametrize("framework", ["asgi", "fastapi"])
@pytest.mark.parametrize("pieces", [[b""], [b"body"], [b"x" * 50_000] * 9], ids=["none", "short", "long"])
def test_what_was_sent_while_a_request_waits_is_not_lost(framework, pieces):
    gate, seen = Gate([{"name": "all", "quota": "1/1h"}]), []

    async def main():
        peer = Peer(*pieces)
        gate.check({})
        request = asyncio.ensure_future(applications(gate, seen)[framework](scope_of(), peer.receive, peer.send))
        await until_async(lambda: gate.waiting == 1)
        gate.refund({})
        await asyncio.wait_for(request, SOON)
        assert peer.sent[0]["status"] == 200 and (len(pieces) == 1 or peer.messages == [])

    asyncio.run(main())
    assert seen == [b"".join(pieces)]


def test_a_reservation_of_a_request_waits():
    gate = Gate([{"name": "streams", "in_flight": 1, "lease": "30s"}])

    async def app(scope, receive, send):
        await PlainTextResponse(str(scope["state"]["reservation"].allowed))(scope, receive, send)

    async def main():
        limited = slidegate.asgi.RateLimit(app, gate, reserve=lambda _: 1, wait=WAIT)
        first, peer = gate.reserve({}), Peer(b"")
        request = asyncio.ensure_future(limited(scope_of(), peer.receive, peer.send))
        await until_async(lambda: gate.waiting == 1)
        first.cancel()
        await asyncio.wait_for(request, SOON)
        assert peer.sent[1]["body"] == b"True" and gate.peek({}).held == 0

    asyncio.run(main())


@pytest.mark.parametrize("wait", [-1, "2s", True, float("nan")])
def test_an_invalid_wait_is_an_error_at_the_start(wait):
    with pytest.raises(InvalidRequest, match="must be seconds"):
        slidegate.wsgi.RateLimit(lambda environ, start: [], "1/1m", wait=wait)
