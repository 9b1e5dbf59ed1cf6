"""Middleware for WSGI: Flask, Bottle, Pyramid, and Django without its own.

    app.wsgi_app = RateLimit(app.wsgi_app, "100/1m")
"""

from __future__ import annotations

import http
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ._middleware import PROBLEM_HEADERS, Asked, Refund, Rule, problem_body, require_sync
from .decision import Decision
from .errors import SlidegateError

__all__ = ["RateLimit"]

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
App = Callable[[Environ, StartResponse], Iterable[bytes]]


class RateLimit:
    """Checks every request before the application, and adds the fields of the decision to its response.

    `limit` is a quota such as `"100/1m"`, a `Limiter`, a `Gate`, a `SharedGate` or a `Client`. The options are those of
    `slidegate.asgi.RateLimit`, except `reserve`; functions get the environ. `denied` is a WSGI application that answers
    denied requests. The application finds the decision in `environ["slidegate.decision"]`.
    """

    def __init__(self, app: App, limit: Any, *, denied: App | None = None, **options: Any) -> None:
        self._app = app
        self._rule: Rule[Environ] = Rule(limit, **options)
        self._denied = denied
        require_sync(self._rule.limit)
        header = self._rule.client_header
        self._header = header and "HTTP_" + header.upper().replace("-", "_")

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if self._rule.skips(environ):
            return self._app(environ, start_response)
        asked = self._asked(environ)
        decision: Decision = self._rule.ask_sync("check", asked)
        environ["slidegate.decision"] = decision
        refund = Refund(self._rule, asked, decision)

        def start(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            own = {name.lower() for name, _ in headers}
            added = [(_title(name), value) for name, value in decision.headers if name not in own]
            self._give_back(refund, int(status[:3]))
            return start_response(status, [*headers, *added], *more)

        if not decision.allowed:
            return (self._denied or _deny(decision))(environ, start)
        try:
            return self._app(environ, start)
        except Exception:
            self._give_back(refund, 500)
            raise

    def _asked(self, environ: Environ) -> Asked:
        forwarded = environ.get(self._header) if self._header else None
        path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
        return self._rule.asked(
            environ,
            peer=environ.get("REMOTE_ADDR"),
            # Servers join the lines of a field with commas.
            forwarded=[] if forwarded is None else [forwarded.encode("latin-1")],
            method=environ["REQUEST_METHOD"],
            # WSGI decodes the bytes of the path as latin-1.
            path=path.encode("latin-1").decode(errors="backslashreplace"),
        )

    def _give_back(self, refund: Refund, status: int) -> None:
        for one in refund.of(status):
            try:
                self._rule.ask_sync("refund", one)
            except SlidegateError:
                pass  # the charge stays


def _deny(decision: Decision) -> App:
    def respond(_environ: Environ, start_response: StartResponse) -> Iterator[bytes]:
        body = problem_body(decision)
        headers = [(_title(name), value) for name, value in PROBLEM_HEADERS]
        headers.append(("Content-Length", str(len(body))))
        start_response(f"{decision.status} {http.HTTPStatus(decision.status).phrase}", headers)
        return iter([body])

    return respond


def _title(name: str) -> str:
    return "-".join(part.capitalize() for part in name.split("-"))
