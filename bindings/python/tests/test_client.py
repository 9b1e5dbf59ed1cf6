"""The client of the service: against a real one, and against servers that misbehave."""

import asyncio
import concurrent.futures
import gc
import hashlib
import json
import os
import pathlib
import pickle
import random
import socket
import sys
import tempfile
import threading
import time
from datetime import timedelta
from email.utils import formatdate

import pytest
from conftest import POLICIES, Service, free_port, wait_until

import slidegate
from slidegate.client import AsyncClient, Client
from slidegate.client.http import BadResponse, ResponseReader

ALLOWED = json.dumps(
    {"allowed": True, "policy": None, "key": None, "why": "none", "limit": None, "used": None, "remaining": None,
     "cost": None, "retry_after_ms": 0, "reset_after_ms": None, "source": None, "policies": []}
).encode()  # fmt: skip


def response(body, status="200 OK", *fields):
    head = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *fields]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


@pytest.fixture(params=["threads", "asyncio"])
def connect(request, blocking):
    """Makes a client of either kind, whose calls block."""

    def make(url, **options):
        return Client(url, **options) if request.param == "threads" else blocking(AsyncClient(url, **options))

    return make


# An application must know whom to deny, for how long, and what to tell its client.
def test_a_denial_has_wait_reason_and_header_fields(service, connect, unique):
    client = connect(service.url, timeout=5)
    for used in (1, 2, 3):
        decision = client.check({"user": unique})
        assert decision and (decision.used, decision.remaining, decision.status) == (used, 3 - used, 200)
    denied = client.check({"user": unique})
    assert not denied and isinstance(denied, slidegate.Decision)
    assert (denied.policy, denied.key, denied.limit, denied.reason) == ("per-user", unique, 3, "over_limit")
    assert timedelta(seconds=50) < denied.retry_after <= denied.reset_after <= timedelta(seconds=60)
    assert denied.status == 429 and denied.problem["violated-policies"] == ["per-user"]
    fields = dict(denied.headers)
    assert fields["ratelimit-policy"] == '"per-user";q=3;w=60' and 50 < int(fields["retry-after"]) <= 60
    assert slidegate.parse_rate_limit(denied.headers).items[0].remaining == 0
    assert denied.error is None and denied.policies[0].window == timedelta(minutes=1)


def test_refund_penalize_reset_peek_batch_and_inspect(service, connect, unique):
    client = connect(service.url, timeout=5)
    user = {"user": unique}
    assert client.check(user, cost=3) and not client.peek(user)
    assert client.refund(user, cost=2).cost == 2
    assert client.peek(user).remaining == 2
    assert client.penalize(user, cost=9).used == 10
    assert client.inspect("per-user", unique).used == 10
    assert client.reset(user) is True and client.reset(user) is False
    decisions = client.check_batch([{"attributes": user, "cost": 2}, {"attributes": user, "cost": 2}])
    assert [one.allowed for one in decisions] == [True, False]
    assert client.check({"user": unique}, policy="per-user").used == 3
    with pytest.raises(slidegate.SlidegateError, match="bytes|unknown") as error:
        client.inspect("no such policy", unique)
    assert error.value.code in ("not_found", "invalid_request")


# A denial of a name that a client sends must not fail open, or its limit could be lifted.
def test_what_cannot_be_counted_is_denied_and_charges_nothing(service, connect, unique):
    client = connect(service.url, timeout=5)
    for attributes in ({"user": "\ud800"}, {"user": 7}, {"user": b"x"}, {"\ud800": "x"}, {"user": "x" * 70_000}):
        decision = client.check(attributes)
        assert not decision and decision.source == "invalid" and decision.status == 400, attributes
        assert isinstance(decision.error, slidegate.InvalidRequest)
    for cost in (-1, 1.0, True, 2**53, "1", {}, {"a": -1}):
        decision = client.check({"user": unique}, cost=cost)
        assert not decision and decision.status == 500 and decision.error.code == "invalid_request", cost
    assert not client.check({"user": unique}, idempotency_key="a b")
    assert not client.check("user")
    assert client.peek({"user": unique}).used == 0


def test_an_idempotency_key_charges_once(service, connect, unique):
    client = connect(service.url, timeout=5)
    for _ in range(3):
        assert client.check({"user": unique}, idempotency_key="order-1").used == 1


def test_unreachable_services_fail_open_or_closed(connect):
    url = f"http://127.0.0.1:{free_port()}"
    allowed = connect(url, timeout=5).check({"user": "alice"})
    assert allowed and allowed.source == "fail_open" and allowed.error.code == "unavailable"
    denied = connect(url, timeout=5, on_failure="deny").check({"user": "alice"})
    assert not denied and (denied.status, denied.source) == (503, "fail_closed")
    assert dict(denied.headers)["retry-after"] == str(int(denied.retry_after.total_seconds()))
    with pytest.raises(slidegate.SlidegateError) as error:
        connect(url, timeout=5).refund({"user": "alice"})
    assert error.value.code == "unavailable" and pickle.loads(pickle.dumps(error.value)).code == "unavailable"


# The timeout is for the whole call: a server that sends a byte now and then must not hold requests.
@pytest.mark.parametrize("answer", ["drips", "silent", "full"])
def test_the_timeout_bounds_a_call_in_all(fake_server, connect, answer):
    def serve(server, connection):
        server.read_request(connection)
        for byte in b"HTTP/1.1 200 OK\r\nx-" + b"a" * 4096:
            if answer == "silent":
                time.sleep(0.5)
                return
            connection.send(bytes([byte]))
            time.sleep(0.02)

    client = connect(fake_server(serve).url, timeout=0.2)
    started = time.monotonic()
    decision = client.check({"user": "x" * 1000}) if answer != "full" else client.check({"user": "x" * 60_000})
    assert time.monotonic() - started < 30  # what drips takes 80
    assert decision.source == "fail_open" and decision.error.code == "timeout"


# Whoever controls the answer must not get the token, nor the memory of the client.
def test_redirects_are_not_followed_and_the_token_goes_nowhere_else(fake_server, connect):
    other = fake_server(lambda server, connection: server.read_request(connection))

    def redirect(server, connection):
        server.read_request(connection)
        connection.sendall(response(b"", "307 Temporary Redirect", f"location: {other.url}/v1/check"))

    server = fake_server(redirect)
    decision = connect(server.url, token="secret-token", timeout=5).check({"user": "alice"})
    assert decision.error.code == "invalid_response" and b"Bearer secret-token" in server.received
    assert other.connections == 0
    for token in ("a\r\nx: y", "", "a b"):
        with pytest.raises(slidegate.InvalidRequest):
            connect(server.url, token=token)


def test_answers_without_bounds_or_sense_are_errors(fake_server, connect):
    endless = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"10000\r\n" + b"x" * 65536 + b"\r\n"
    answers = [
        endless + (b"10000\r\n" + b"x" * 65536 + b"\r\n") * 20,
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x-a: b\r\n" * 10_000,
        b"SSH-2.0-OpenSSH\r\n\r\n",
        response(b"not json"),
        response(b"{}"),
        response(b'{"allowed": 1}'),
        response(b'{"allowed": true, "policy": "p"}'),
        response(b"[" * 100_000),
        response(ALLOWED, "404 Not Found"),
        response(ALLOWED, "500 Oops"),
        b"",
    ]
    for answer in answers:

        def serve(server, connection, answer=answer):
            server.read_request(connection)
            connection.sendall(answer)

        decision = connect(fake_server(serve).url, timeout=5).check({"user": "alice"})
        assert decision.source == "fail_open" and decision.error is not None, answer[:60]


def test_connections_are_kept_and_replaced_when_the_server_closes_them(fake_server, connect):
    def serve(server, connection):
        for _ in range(3):
            if server.read_request(connection):
                connection.sendall(response(ALLOWED))

    server = fake_server(serve)
    client = connect(server.url, timeout=5)
    for count in range(1, 10):
        decision = client.check({"user": "alice"})
        assert decision.error is None
        assert server.connections == (count + 2) // 3
        time.sleep(0.02 if count % 3 == 0 else 0)  # the end of a connection takes a moment to arrive


def test_a_restarted_service_is_found_again(tmp_path, connect):
    service = Service(tmp_path, POLICIES)
    try:
        client = connect(service.url, timeout=5)
        assert client.check({"user": "alice"}).error is None
        service.stop()
        assert client.check({"user": "alice"}).source == "fail_open"
        service.start()
        assert client.check({"user": "alice"}).error is None
    finally:
        service.stop()


def test_a_unix_socket_and_an_invalid_url(tmp_path, connect):
    # Paths of sockets have at most 107 bytes, and the folder for temporary files may have a long one.
    folder = tempfile.TemporaryDirectory(dir="/tmp")
    path = pathlib.Path(folder.name) / "http.sock"
    service = Service(tmp_path, POLICIES, extra=f"server: {{socket: {path}}}")
    try:
        assert connect(f"unix://{path}", timeout=5).check({"user": "alice"}).used == 1
    finally:
        service.stop()
        folder.cleanup()
    for url in ("127.0.0.1:7979", "ftp://x", "http://user:secret@host", "http://h/?a", "http://h:x", "http://h/\r\nx"):
        with pytest.raises(slidegate.InvalidRequest) as error:
            connect(url)
        assert "secret" not in str(error.value)


# A limit must hold however many threads or tasks share a client.
def test_threads_and_tasks_share_a_client_and_the_limit_holds(service, unique):
    client = Client(service.url, timeout=10, max_connections=4)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        decisions = list(pool.map(lambda _: client.check({"user": unique}), range(100)))
    assert sum(one.allowed for one in decisions) == 3 and not any(one.error for one in decisions)

    async def main():
        async with AsyncClient(service.url, timeout=10, max_connections=4) as aio:
            return await asyncio.gather(*(aio.check({"user": unique + "2"}) for _ in range(100)))

    decisions = asyncio.run(main())
    assert sum(one.allowed for one in decisions) == 3 and not any(one.error for one in decisions)


# An answer that comes after its task was cancelled must not be taken for that of the next one.
def test_a_cancelled_call_does_not_leave_its_answer_to_the_next(fake_server):
    turn = iter(range(100))

    def serve(server, connection):
        while server.read_request(connection):
            number = next(turn)
            time.sleep(0.2 if number == 0 else 0)
            connection.sendall(response(ALLOWED.replace(b'"none"', b'"%d"' % number)))

    server = fake_server(serve)

    async def main():
        client = AsyncClient(server.url, timeout=5)
        first = asyncio.ensure_future(client.check({"user": "alice"}))
        await asyncio.sleep(0.05)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        return (await client.check({"user": "alice"})).why

    assert asyncio.run(main()) == "1" and server.connections == 2


# Connections belong to the thread of their event loop: closed by another one, they crash the process.
@pytest.mark.parametrize("leave", ["dropped", "used by another loop", "dropped with its loop", "dropped by a child"])
@pytest.mark.skipif(not hasattr(os, "fork"), reason="has no fork")
def test_connections_are_closed_by_their_own_event_loop(fake_server, monkeypatch, leave):
    ended = []

    def serve(server, connection):
        while server.read_request(connection):
            connection.sendall(response(ALLOWED))
        ended.append(connection)

    server, complaints = fake_server(serve), []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    loop = asyncio.new_event_loop()
    loop.set_debug(True)  # refuses calls from other threads
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    client = AsyncClient(server.url, timeout=30)

    def check():
        return asyncio.run_coroutine_threadsafe(client.check({"user": "alice"}), loop).result(60)

    assert check().error is None
    if leave == "dropped by a child":
        child = os.fork()
        if child == 0:
            client = None
            gc.collect()
            os._exit(len(complaints))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert check().error is None and server.connections == 1
    if leave == "used by another loop":
        asyncio.run(client.check({"user": "alice"}))
    if leave == "dropped with its loop":
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
    del client
    gc.collect()
    if leave != "dropped with its loop":
        wait_until(lambda: len(ended) == server.connections, 30, "the end of the connections")
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    assert not complaints and server.connections == 1 + (leave == "used by another loop")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="has no fork")
def test_a_forked_process_does_not_use_the_connections_of_its_parent(service, unique):
    client = Client(service.url, timeout=5)
    assert client.check({"user": unique}).used == 1
    child = os.fork()
    if child == 0:
        os._exit(client.check({"user": unique}).used)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert client.check({"user": unique}).used == 3


# The text of a reservation that any process may settle, once.
def test_a_reservation_is_settled_once_in_parts_and_by_ticket(service, connect, unique):
    client = connect(service.url, timeout=5)
    team = {"team": unique}
    reservation = client.reserve(team, cost=600)
    assert reservation and reservation.decision.held == 600
    assert not client.reserve(team, cost=600)
    assert reservation.settle_so_far(100).outcome == "changed"
    assert reservation.extend(timedelta(minutes=2), hold=300).outcome == "changed"
    assert not reservation.extend(hold=5000)
    settled = reservation.settle(150)
    assert settled.outcome == "changed" and settled.policies[0].decision.used == 150
    assert reservation.settle(150).outcome == "none"
    assert client.settle(reservation.ticket, 150).outcome == "already_settled"
    assert client.peek(team).used == 150 and client.peek(team).held == 0
    kept = [client.reserve({"stream": unique}) for _ in range(3)]
    assert [one.allowed for one in kept] == [True, True, False]
    tickets = [one.ticket for one in kept[:2]]
    assert [one.outcome for one in client.extend_all(tickets)] == ["changed"] * 2
    assert client.cancel(tickets[0]).outcome == "changed"
    with pytest.raises(slidegate.SlidegateError):
        client.settle("no ticket", 1)


# A guess by the wrong clock extends too late, or all the time.
@pytest.mark.parametrize(("offset", "lasts"), [(-7200, 30), (-0.4, 30), (0, 30), (7200, 30)])
def test_a_reservation_lasts_as_long_by_a_service_whose_clock_differs(fake_server, connect, offset, lasts):
    def serve(server, connection):
        server.read_request(connection)
        now = time.time() + offset
        body = json.loads(ALLOWED) | {"ticket": "t", "until_ms": int((now + lasts) * 1000)}
        date = f"Date: {formatdate(int(now), usegmt=True)}"
        connection.sendall(response(json.dumps(body).encode(), "200 OK", date))

    reservation = connect(fake_server(serve).url, timeout=5).reserve({"user": "alice"})
    assert reservation.decision.error is None
    assert lasts - 1 <= reservation.ttl <= lasts + 1


def test_a_block_settles_what_was_recorded_or_cancels(service, connect, unique):
    client = connect(service.url, timeout=5)
    team = {"team": unique}
    with client.reserve(team, cost=500) as reservation:
        reservation.record(120)
    assert (client.peek(team).used, client.peek(team).held) == (120, 0)
    with pytest.raises(ZeroDivisionError), client.reserve(team, cost=500) as reservation:
        reservation.record({"output": 30})
        raise ZeroDivisionError
    assert client.peek(team).used == 150
    with client.reserve(team, cost=500):
        pass
    assert (client.peek(team).used, client.peek(team).held) == (150, 0)


# A settlement whose answer was lost is repeated, and charged once.
def test_a_settlement_is_repeated_until_it_is_answered(service, fake_server, connect, unique):
    lost = []

    def serve(server, connection):
        request = server.read_request(connection)
        with socket.create_connection(("127.0.0.1", service.port)) as upstream:
            upstream.sendall(request.replace(b" HTTP/1.1\r\n", b" HTTP/1.1\r\nConnection: close\r\n", 1))
            answer = b""
            while received := upstream.recv(65536):
                answer += received
        if b"/v1/settle" in request and len(lost) < 2:
            lost.append(answer)
            return
        connection.sendall(answer)

    client = connect(fake_server(serve).url, timeout=5)
    team = {"team": unique}
    with client.reserve(team, cost=500) as reservation:
        assert reservation.settle(70).outcome == "already_settled"
    assert len(lost) == 2 and client.peek(team).used == 70


# Leaving a block must end in time even if the service is gone, and tell of it.
def test_a_settlement_gives_up_in_time(tmp_path, connect, unique):
    service = Service(tmp_path, POLICIES)
    client = connect(service.url, timeout=60, settle_timeout=0.3)
    reservation = client.reserve({"team": unique}, cost=5)
    service.stop()
    started = time.monotonic()
    with pytest.raises(slidegate.SlidegateError) as error:
        reservation.settle(5)
    assert error.value.code == "unavailable" and time.monotonic() - started < 30


def test_a_token_is_sent_and_a_wrong_one_is_no_outage(tmp_path, connect):
    secret = "0123456789abcdef0123456789abcdef"
    digest = hashlib.sha256(secret.encode()).hexdigest()
    tokens = f"admin: {{decisions: token, tokens: [{{name: app, scope: write, sha256: {digest}}}]}}"
    service = Service(tmp_path, POLICIES, extra=tokens)
    try:
        assert connect(service.url, token=secret, timeout=5).check({"user": "alice"}).used == 1
        wrong = connect(service.url, token="wrong", on_failure="deny", timeout=5).check({"user": "alice"})
        assert not wrong and wrong.error.code == "unauthorized"
    finally:
        service.stop()


# Bytes arrive in pieces of any size, and the same response must come out.
def test_a_response_is_read_the_same_in_any_pieces():
    random.seed(3)
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\ntrailer: x\r\n\r\n"
    interim = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + response(b"abcde")
    for whole in (chunked, interim, response(b"abcde", "200 OK", "connection: close"), b"HTTP/1.0 200 OK\r\n\r\nabcde"):
        for _ in range(50):
            reader, at = ResponseReader(100), 0
            while at < len(whole):
                size = random.randrange(1, 9)
                reader.feed(whole[at : at + size])
                at += size
            if not reader.complete:
                reader.feed(b"")
            assert (reader.status, reader.body) == (200, b"abcde")
    for cut in range(len(chunked)):
        reader = ResponseReader(100)
        with pytest.raises(BadResponse):
            reader.feed(chunked[:cut])
            reader.feed(b"")
    for length in range(2000):
        noise = random.choices(b"HTP/1.0 2\r\n:acontetlghsfru-dk;", k=length % 60)
        reader = ResponseReader(100)
        try:
            reader.feed(b"HTTP/1.1 200 OK\r\n" * (length % 2) + bytes(noise))
        except BadResponse:
            pass


# Answers that nobody asked for would be taken for those of the next request.
def test_a_connection_with_more_than_one_answer_is_not_used_again(fake_server, connect):
    def serve(server, connection):
        while server.read_request(connection):
            connection.sendall(response(ALLOWED) + response(ALLOWED.replace(b"none", b"smuggled")))

    server = fake_server(serve)
    client = connect(server.url, timeout=5)
    for count in (1, 2, 3):
        assert client.check({"user": "alice"}).why == "none"
        assert server.connections == count


# A slow service must not get a connection for each thread that waits for it.
def test_more_calls_than_connections_wait_for_one(fake_server):
    both = threading.Barrier(2)

    def serve(server, connection):
        both.wait(5)
        while server.read_request(connection):
            connection.sendall(response(ALLOWED))

    server = fake_server(serve)
    client = Client(server.url, timeout=5, max_connections=2)
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        decisions = list(pool.map(lambda _: client.check({"user": "alice"}), range(60)))
    assert not any(one.error for one in decisions) and server.connections == 2
