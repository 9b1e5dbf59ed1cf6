"""Real servers on free loopback ports. Each test run starts its own, and stops only those."""

import asyncio
import http.client
import itertools
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
#: The deadline of a store in tests that are not about time: slow machines must not make them fail.
PATIENT = timedelta(seconds=5)


def ports():
    """A block of ports that are below the range of ephemeral ones: a connection could be given one of those before the
    server binds it. No other test finds them free meanwhile: see crates/slidegate-testkit/src/ports.rs."""
    for first in range(16_384, 32_768, 256):
        own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            own.bind(("127.0.0.1", first))
        except OSError:
            own.close()
            continue
        while True:
            yield from range(first, first + 256)
    raise AssertionError("other tests have all ports of 127.0.0.1 from 16384 to 32767")


PORTS = ports()


def free_port():
    for port in itertools.islice(PORTS, 256):
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise AssertionError("no port of this process is free")


def wait_until(ready, seconds=10.0, what="the server"):
    until = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < until, f"{what} did not start within {seconds} s"
        time.sleep(0.01)


async def until_async(is_true, seconds=30.0):
    async def polled():
        while not is_true():
            await asyncio.sleep(0.001)

    await asyncio.wait_for(polled(), seconds)


def accepts(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    except OSError:
        return False


class Server:
    def __init__(self, command, port):
        self.command, self.port = command, port
        self.process = None
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: self.process.poll() is not None or self.is_ready(), what=self.command[0])
        assert self.process.poll() is None, f"`{' '.join(self.command)}` ended at once"

    def is_ready(self):
        return accepts(self.port)

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)
        # On a busy machine, some of its threads go on until the one that got the signal has run.
        threads = Path(f"/proc/{self.process.pid}/task")
        is_stopped = lambda: all(") T " in (one / "stat").read_text() for one in threads.iterdir())
        wait_until(is_stopped, what="the stop of the server")

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def stop(self):
        if self.process.poll() is None:
            self.resume()
            self.process.kill()
        self.process.wait()


class Service(Server):
    def __init__(self, folder, policies, *arguments, extra=""):
        binary = os.environ.get("SLIDEGATE_BIN")
        assert binary, "set SLIDEGATE_BIN to the binary of the service, such as target/debug/slidegate"
        config = folder / "slidegate.yaml"
        config.write_text(f"policies:\n{policies}\n{extra}")
        port = free_port()
        super().__init__([binary, "serve", "--config", str(config), "--listen", f"127.0.0.1:{port}", *arguments], port)

    # It answers when all its listeners are there. The first one accepts before.
    def is_ready(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"


class Redis(Server):
    def __init__(self, folder):
        binary = shutil.which("redis-server")
        assert binary, "these tests need redis-server on the PATH"
        port = free_port()
        super().__init__(
            [binary, "--port", str(port), "--save", "", "--appendonly", "no", "--dir", str(folder)], port
        )
        self.url = f"redis://127.0.0.1:{port}"


POLICIES = """
  - {name: per-user, scope: [user], limit: 3, window: 1m}
  - {name: tokens, scope: [team], quota: 1000/1m}
  - {name: streams, scope: [stream], in_flight: 2, lease: 30s}
"""


@pytest.fixture(scope="session")
def service(tmp_path_factory):
    service = Service(tmp_path_factory.mktemp("service"), POLICIES)
    yield service
    service.stop()


@pytest.fixture
def redis(tmp_path):
    redis = Redis(tmp_path)
    yield redis
    redis.stop()


@pytest.fixture
def unique(request):
    """A value that no other test uses."""
    return f"{request.node.name}-{time.monotonic_ns()}"


class FakeServer:
    """Answers each connection by a function of its socket, in a thread, and counts connections."""

    def __init__(self, answer):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.connections = 0
        self.received = bytearray()
        self._answer = answer
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with connection:
            try:
                self._answer(self, connection)
            except OSError:
                pass

    def read_request(self, connection):
        """One request; empty at the end of the connection."""
        data = bytearray()
        while b"\r\n\r\n" not in data:
            received = connection.recv(65536)
            if not received:
                return b""
            data += received
        head, _, body = bytes(data).partition(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
        while len(body) < length:
            body += connection.recv(65536)
        self.received += head + b"\r\n\r\n" + body
        return head + b"\r\n\r\n" + body

    def close(self):
        self.listener.close()


@pytest.fixture
def fake_server():
    servers = []

    def start(answer):
        servers.append(FakeServer(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


class Blocking:
    """An object with coroutines, called from a test that has none: so that one test serves both kinds."""

    def __init__(self, inner, loop):
        self._inner, self._loop = inner, loop

    def __getattr__(self, name):
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*args, **kwargs):
            result = found(*args, **kwargs)
            if asyncio.iscoroutine(result) or isinstance(result, asyncio.Future):
                result = self._loop.run_until_complete(result)
            return Blocking(result, self._loop) if hasattr(result, "__aexit__") else result

        return call

    def __bool__(self):
        return bool(self._inner)

    def __enter__(self):
        self._loop.run_until_complete(self._inner.__aenter__())
        return self

    def __exit__(self, *error):
        return self._loop.run_until_complete(self._inner.__aexit__(*error))


@pytest.fixture
def blocking():
    loop = asyncio.new_event_loop()
    yield lambda inner: Blocking(inner, loop)
    loop.close()
