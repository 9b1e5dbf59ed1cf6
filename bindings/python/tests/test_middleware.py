"""The middleware, in the frameworks themselves."""

import asyncio
import wsgiref.util

import django.conf
import fastapi
import flask
import pytest
import starlette.testclient
from conftest import PATIENT
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route

import slidegate
import slidegate.asgi
import slidegate.fastapi
import slidegate.mcp
import slidegate.wsgi
from slidegate import Gate, InvalidRequest, Limiter, SharedGate
from slidegate.client import AsyncClient, Client

django.conf.settings.configure(
    DEBUG=True, SECRET_KEY="x", ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], INSTALLED_APPS=["rest_framework"],
    SLIDEGATE={"limit": "2/1m"},
    REST_FRAMEWORK={"UNAUTHENTICATED_USER": None, "DEFAULT_AUTHENTICATION_CLASSES": []},
)  # fmt: skip
django.setup()

import django.http  # noqa: E402
import django.test  # noqa: E402
import django.urls  # noqa: E402
import rest_framework.decorators  # noqa: E402
import rest_framework.response  # noqa: E402

import slidegate.django  # noqa: E402
import slidegate.drf  # noqa: E402

PER_IP = [{"name": "per-ip", "scope": ["ip"], "quota": "2/1m"}]
PER_USER = [
    {"name": "per-user", "scope": ["user"], "quota": "3/1m"},
    {"name": "tokens", "scope": ["team"], "quota": "1000/1m"},
]


def app_of(*handlers):
    return Starlette(routes=[Route("/" + one.__name__, one, methods=["GET", "POST"]) for one in handlers])


async def hello(request):
    return PlainTextResponse("hello")


async def fail(request):
    raise ZeroDivisionError


async def missing(request):
    return PlainTextResponse("missing", 404)


async def decision(request):
    return JSONResponse({"remaining": request.state.rate_limit.remaining})


def client_of(app, peer="192.0.2.7"):
    return starlette.testclient.TestClient(app, raise_server_exceptions=False, client=(peer, 1))


@pytest.fixture(params=["quota", "limiter", "gate", "shared", "service"])
def limit(request):
    """Everything that can limit, each with two requests in a minute."""
    if request.param == "shared":
        return SharedGate(request.getfixturevalue("redis").url, PER_IP, deadline=PATIENT)
    if request.param == "service":
        service = request.getfixturevalue("service_per_ip")
        return AsyncClient(service.url, timeout=5)
    return {"quota": "2/1m", "limiter": Limiter("2/1m"), "gate": Gate(PER_IP)}[request.param]


@pytest.fixture
def service_per_ip(tmp_path):
    from conftest import Service

    service = Service(tmp_path, "  - {name: per-ip, scope: [ip], quota: 2/1m}")
    yield service
    service.stop()


def test_asgi_denies_by_everything_that_limits_and_adds_the_fields(limit):
    app = app_of(hello, decision)
    app.add_middleware(slidegate.asgi.RateLimit, limit=limit)
    client = client_of(app)
    with client:
        first = client.get("/hello")
        assert (first.status_code, first.text) == (200, "hello") and "r=1" in first.headers["ratelimit"]
        assert client.get("/decision").json() == {"remaining": 0}
        denied = client.get("/hello")
        assert denied.status_code == 429 and denied.headers["content-type"] == "application/problem+json"
        assert denied.headers["cache-control"] == "no-store" and 0 < int(denied.headers["retry-after"]) <= 60
        assert denied.json()["type"].endswith("#quota-exceeded") and denied.json()["status"] == 429
    assert client_of(app, "192.0.2.8").get("/hello").status_code == 200 or not isinstance(limit, str)


def test_clients_are_told_apart_behind_trusted_proxies_only():
    app = app_of(hello)
    app.add_middleware(slidegate.asgi.RateLimit, limit="1/1m", trusted_proxies=["10.0.0.0/8"])
    proxy, stranger = client_of(app, "10.0.0.1"), client_of(app, "198.51.100.9")
    forged = {"x-forwarded-for": "6.6.6.6, 203.0.113.7"}
    assert proxy.get("/hello", headers=forged).status_code == 200
    assert proxy.get("/hello", headers={"x-forwarded-for": "7.7.7.7, 203.0.113.7"}).status_code == 429
    assert proxy.get("/hello", headers={"x-forwarded-for": "203.0.113.8"}).status_code == 200
    assert stranger.get("/hello", headers=forged).status_code == 200
    assert stranger.get("/hello", headers={"x-forwarded-for": "1.2.3.4"}).status_code == 429
    six = {"x-forwarded-for": "2001:db8:1:2::1"}
    assert proxy.get("/hello", headers=six).status_code == 200
    assert proxy.get("/hello", headers={"x-forwarded-for": "[2001:db8:1:2::2]:80"}).status_code == 429
    for invalid in ({"trusted_proxies": ["x"]}, {"trusted_proxies": "10.0.0.0/8"}, {"ipv6_prefix": 7}):
        with pytest.raises(InvalidRequest):
            slidegate.asgi.RateLimit(app, "1/1m", **invalid)


def test_options_choose_key_cost_policy_skip_and_the_denial():
    async def denied(scope, receive, send):
        await PlainTextResponse("slow down", 420)(scope, receive, send)

    header = lambda scope: dict(scope["headers"]).get(b"x-user", b"nobody").decode()  # noqa: E731
    app = app_of(hello, missing)
    gate = Gate(PER_USER)
    app.add_middleware(
        slidegate.asgi.RateLimit, limit=gate, attributes=lambda scope: {"user": header(scope)},
        cost=lambda scope: 2 if scope["path"] == "/missing" else 1, skip=lambda scope: scope["method"] == "POST",
        denied=denied, policy="per-user",
    )  # fmt: skip
    client = client_of(app)
    assert client.get("/missing", headers={"x-user": "alice"}).status_code == 404
    assert client.get("/hello", headers={"x-user": "alice"}).status_code == 200
    answer = client.get("/hello", headers={"x-user": "alice"})
    assert (answer.status_code, answer.text) == (420, "slow down") and "retry-after" in answer.headers
    assert client.post("/hello", headers={"x-user": "alice"}).status_code == 200
    assert client.get("/hello", headers={"x-user": "bob"}).status_code == 200


# A login that fails counts; a server error is not the client's fault.
@pytest.mark.parametrize("make", [lambda: Limiter("2/1m"), lambda: Gate(PER_IP)], ids=["limiter", "gate"])
def test_refunds_return_the_charge_once_by_status(make):
    app = app_of(hello, fail, missing)
    app.add_middleware(slidegate.asgi.RateLimit, limit=make(), refund=lambda status: status >= 500)
    client = client_of(app)
    assert [client.get("/fail").status_code for _ in range(9)] == [500] * 9
    assert [client.get("/missing").status_code for _ in range(3)] == [404, 404, 429]


def test_paths_are_counted_as_routers_see_them():
    gate = Gate([{"name": "login", "when": {"path": "/hello"}, "quota": "1/1m"}])
    app = app_of(hello)
    app.add_middleware(slidegate.asgi.RateLimit, limit=gate)
    client = client_of(app)
    assert client.get("/hello").status_code == 200
    for path in ("/hello", "/%68ello", "/x/..//hello", "/./hello"):
        assert client.get(f"http://testserver{path}").status_code == 429, path


def test_streamed_answers_are_held_and_settled_to_what_was_recorded():
    gate = Gate(PER_USER)
    held = []

    async def stream(request):
        reservation = request.state.reservation

        async def words():
            for number in range(1, 4):
                reservation.record(number * 10)
                held.append(gate.peek({"team": "a"}).held)
                yield "word "

        return StreamingResponse(words())

    app = app_of(stream, hello, fail)
    app.add_middleware(
        slidegate.asgi.RateLimit, limit=gate, reserve=lambda scope: 400, attributes=lambda scope: {"team": "a"},
        refund=lambda status: status >= 500,
    )  # fmt: skip
    client = client_of(app)
    assert client.get("/stream").text == "word word word "
    assert held == [400, 400, 400] and (gate.peek({"team": "a"}).used, gate.peek({"team": "a"}).held) == (30, 0)
    assert client.get("/fail").status_code == 500 and gate.peek({"team": "a"}).used == 30
    assert client.get("/hello").status_code == 200 and gate.peek({"team": "a"}).used == 430
    assert client.get("/hello").status_code == 200
    denied = client.get("/hello")
    assert denied.status_code == 429 and gate.peek({"team": "a"}).used == 830


# A client that disconnects leaves nothing held.
def test_a_request_that_is_cancelled_is_settled():
    gate = Gate(PER_USER)

    async def main():
        started = asyncio.Event()

        async def app(scope, receive, send):
            scope["state"]["reservation"].record(70)
            await send({"type": "http.response.start", "status": 200, "headers": []})
            started.set()
            await asyncio.Event().wait()

        limited = slidegate.asgi.RateLimit(app, gate, reserve=lambda _: 400, attributes=lambda _: {"team": "a"})
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": ("192.0.2.7", 1)}

        async def send(message):
            pass

        request = asyncio.ensure_future(limited(scope, None, send))
        await started.wait()
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        assert (gate.peek({"team": "a"}).used, gate.peek({"team": "a"}).held) == (70, 0)

    asyncio.run(main())


def test_a_long_stream_is_kept_held_and_settled_in_parts(redis):
    policies = [{"name": "streams", "scope": ["team"], "in_flight": 1, "lease": "1s"}, PER_USER[1]]
    gate = SharedGate(redis.url, policies, deadline=PATIENT)

    async def main():
        async def app(scope, receive, send):
            await asyncio.sleep(1.5)  # longer than the lease
            assert not await gate.reserve({"team": "a"}, cost=1)
            scope["state"]["reservation"].record(70)
            await asyncio.sleep(0.5)
            used = {one.policy: one.used for one in (await gate.peek({"team": "a"})).policies}
            assert used["tokens"] == 70

        limited = slidegate.asgi.RateLimit(app, gate, reserve=lambda _: 400, attributes=lambda _: {"team": "a"})
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": None}
        await limited(scope, None, None)
        async with await gate.reserve({"team": "a"}, cost=1) as reservation:
            assert reservation

    asyncio.run(main())


def test_other_scopes_pass_and_blocking_clients_are_refused():
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["type"])

    limited = slidegate.asgi.RateLimit(app, "0/1m")
    asyncio.run(limited({"type": "lifespan"}, None, None))
    assert seen == ["lifespan"]
    with pytest.raises(InvalidRequest, match="AsyncClient"):
        slidegate.asgi.RateLimit(app, Client())
    with pytest.raises(InvalidRequest, match="Client"):
        slidegate.wsgi.RateLimit(app, AsyncClient())


def test_fastapi_dependencies_limit_single_routes():
    app = fastapi.FastAPI()

    @app.get("/limited")
    def limited(found: slidegate.Decision = fastapi.Depends(slidegate.fastapi.rate_limit("2/1m"))):
        return found.remaining

    @app.get("/free")
    def free():
        return "free"

    client = client_of(app)
    answer = client.get("/limited")
    assert answer.json() == 1 and answer.headers["x-ratelimit-remaining"] == "1"
    client.get("/limited")
    denied = client.get("/limited")
    assert denied.status_code == 429 and "Retry in" in denied.json()["detail"] and int(denied.headers["retry-after"])
    other = fastapi.FastAPI(exception_handlers={slidegate.fastapi.Denied: slidegate.fastapi.problem})
    other.include_router(app.router)
    problem = client_of(other).get("/limited")
    assert problem.headers["content-type"] == "application/problem+json" and int(problem.headers["retry-after"])
    assert problem.headers["cache-control"] == "no-store" and problem.json()["violated-policies"] == ["default"]
    assert client.get("/free").json() == "free"


@pytest.mark.parametrize("make", [lambda: "2/1m", lambda: Gate(PER_IP)], ids=["quota", "gate"])
def test_wsgi_limits_flask(make):
    app = flask.Flask("app")

    @app.get("/")
    def home():
        return str(flask.request.environ["slidegate.decision"].remaining)

    @app.get("/fail")
    def fail():
        flask.abort(503)

    app.wsgi_app = slidegate.wsgi.RateLimit(
        app.wsgi_app, make(), refund=lambda status: status >= 500, trusted_proxies=["127.0.0.1"]
    )
    client = app.test_client()
    assert [client.get("/fail").status_code for _ in range(5)] == [503] * 5
    first = client.get("/")
    assert first.text == "1" and first.headers["RateLimit-Policy"].endswith("q=2;w=60")
    client.get("/")
    denied = client.get("/")
    assert denied.status_code == 429 and denied.json["status"] == 429 and int(denied.headers["Retry-After"]) > 0
    assert client.get("/", headers={"X-Forwarded-For": "192.0.2.9"}).status_code == 200


def test_wsgi_over_the_service_and_a_shared_gate(service_per_ip, redis):
    for limit in (Client(service_per_ip.url, timeout=5), SharedGate(redis.url, PER_IP, deadline=PATIENT)):
        app = slidegate.wsgi.RateLimit(lambda environ, start: (start("200 OK", []), [b"x"])[1], limit)
        statuses = []
        for path in ("/", "/\xff", "/"):
            environ = {"PATH_INFO": path, "REMOTE_ADDR": "192.0.2.7"}
            wsgiref.util.setup_testing_defaults(environ)
            b"".join(app(environ, lambda status, headers, *more: statuses.append(status[:3])))
        assert statuses == ["200", "200", "429"]


def view(request):
    return django.http.HttpResponse(str(request.rate_limit.remaining))


async def async_view(request):
    return django.http.HttpResponse(str(request.rate_limit.remaining))


def fail_view(request):
    return django.http.HttpResponse("failed", status=500)


@rest_framework.decorators.api_view()
@rest_framework.decorators.throttle_classes([slidegate.drf.Throttle])
def throttled_view(request):
    return rest_framework.response.Response({"remaining": request.rate_limit.remaining})


urlpatterns = [
    django.urls.path("view", view),
    django.urls.path("async", async_view),
    django.urls.path("fail", fail_view),
    django.urls.path("throttled", throttled_view),
]


def test_django_in_threads_and_asyncio():
    options = {"limit": Gate(PER_IP), "refund": lambda status: status >= 500}
    settings = {"MIDDLEWARE": ["slidegate.django.RateLimit"], "SLIDEGATE": options}
    with django.test.override_settings(**settings):
        client = django.test.Client()
        assert [client.get("/fail").status_code for _ in range(4)] == [500] * 4
        assert client.get("/view").content == b"1" and client.get("/view").headers["RateLimit"]
        denied = client.get("/view")
        assert denied.status_code == 429 and denied.json()["status"] == 429 and denied["Cache-Control"] == "no-store"

        async def main():
            aio = django.test.AsyncClient()
            answers = [(await aio.get("/async", REMOTE_ADDR="192.0.2.1")).status_code for _ in range(3)]
            return answers

        assert asyncio.run(main())[-1] == 429
    with django.test.override_settings(MIDDLEWARE=["slidegate.django.RateLimit"], SLIDEGATE=None):
        with pytest.raises(InvalidRequest, match="SLIDEGATE must be a dictionary"):
            django.test.Client().get("/view")


def test_a_throttle_of_the_rest_framework_over_a_whole_gate(monkeypatch):
    monkeypatch.delattr(slidegate.drf.Throttle, "_rule", raising=False)
    gate = Gate([*PER_IP, {"name": "all", "quota": "100/1m"}])
    with django.test.override_settings(SLIDEGATE={"limit": gate}):
        client = django.test.Client()
        assert [client.get("/throttled").status_code for _ in range(3)] == [200, 200, 429]
        assert 0 < int(client.get("/throttled").headers["Retry-After"]) <= 60
    assert gate.peek({}).used == 2


def test_a_tool_says_to_the_model_how_long_to_wait():
    mcp = pytest.importorskip("mcp.server.mcpserver")
    server = mcp.MCPServer("test")

    @server.tool()
    @slidegate.mcp.limited("2/1m", key=lambda arguments: arguments["user"])
    def search(query: str, user: str = "alice") -> str:
        """Searches."""
        return query

    gate = Gate([{"name": "tools", "scope": ["tool"], "quota": "1/1m"}])

    @server.tool()
    @slidegate.mcp.limited(gate, cost=lambda arguments: arguments["pages"])
    async def fetch(pages: int) -> str:
        return "fetched"

    async def main():
        call = lambda name, **arguments: server.call_tool(name, arguments)  # noqa: E731
        assert "query" in str(next(one for one in await server.list_tools() if one.name == "search"))
        await call("search", query="a")
        await call("search", query="a")
        for name, arguments, message in (
            ("search", {"query": "a"}, r"Rate limit of tool `search` reached. Wait (59|60) seconds"),
            ("fetch", {"pages": 2}, "never fits"),
        ):
            with pytest.raises(Exception, match=message) as error:
                await call(name, **arguments)
            assert type(error.value).__name__ == "ToolError"
        await call("search", query="a", user="bob")
        await call("fetch", pages=1)

    asyncio.run(main())


def test_without_the_native_part_clients_and_middleware_work(monkeypatch, service_per_ip):
    import importlib
    import sys

    kept = {name: module for name, module in sys.modules.items() if name.startswith("slidegate")}
    for name in kept:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "slidegate._slidegate", None)
    pure = importlib.import_module("slidegate")
    with pytest.raises(ImportError, match="native part"):
        pure.Limiter  # noqa: B018
    asgi = importlib.import_module("slidegate.asgi")
    client = importlib.import_module("slidegate.client").AsyncClient(service_per_ip.url, timeout=5)
    app = app_of(hello)
    app.add_middleware(asgi.RateLimit, limit=client)
    for peer in ("192.0.2.7", "2001:db8:1:2::1", "not an address"):
        with client_of(app, peer) as http:
            assert [http.get("/hello").status_code for _ in range(3)] == [200, 200, 429]
    with pytest.raises(pure.InvalidRequest, match="native part"):
        asgi.RateLimit(app, client, trusted_proxies=["10.0.0.0/8"])
    for name in [name for name in sys.modules if name.startswith("slidegate")]:
        monkeypatch.delitem(sys.modules, name)
    sys.modules.update(kept)
