"""Reads the `RateLimit` and `RateLimit-Policy` fields of a response (IETF drafts 8 to 11), and `Retry-After`.

For clients of any server that sends them. A malformed field is ignored as a whole, and named in `invalid`.
"""

from __future__ import annotations

import base64
import binascii
import email.utils
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from .decision import wait

__all__ = ["QuotaPolicy", "RateLimit", "RateLimits", "parse_rate_limit"]

#: Longer fields are malformed, as are those with more items or parameters. Servers send a few hundred bytes.
MAX_FIELD_BYTES = 16_384
MAX_ITEMS = 64
MAX_PARAMETERS = 32


@dataclass(frozen=True)
class RateLimit:
    """An item of `RateLimit`: what remains under the policy of that name."""

    name: str
    remaining: int
    #: When more is available; `None` if the server does not say.
    reset_after: timedelta | None = None
    partition_key: bytes | None = None


@dataclass(frozen=True)
class QuotaPolicy:
    """An item of `RateLimit-Policy`: a quota, which is per `window` if it has one."""

    name: str
    quota: int
    window: timedelta | None = None
    #: `content-bytes`, `concurrent-requests` and so on; empty for requests.
    unit: str = ""
    partition_key: bytes | None = None


@dataclass(frozen=True)
class RateLimits:
    """What a response says about limits. Each part is empty where it says nothing."""

    items: tuple[RateLimit, ...] = ()
    policies: tuple[QuotaPolicy, ...] = ()
    retry_after: timedelta | None = None
    #: The names of malformed fields, which were ignored.
    invalid: tuple[str, ...] = ()

    @property
    def wait(self) -> timedelta:
        """How long to wait: `retry_after`, otherwise the longest reset of the items with nothing remaining."""
        if self.retry_after is not None:
            return self.retry_after
        resets = [one.reset_after for one in self.items if one.remaining == 0 and one.reset_after is not None]
        return max(resets, default=timedelta(0))


def parse_rate_limit(headers: Mapping[str, str] | Iterable[tuple[str, str]]) -> RateLimits:
    """Reads the header fields of a response, given as a mapping or as pairs of names and values.

    >>> limits = parse_rate_limit({"RateLimit": '"per-user";r=0;t=12'})
    >>> limits.items[0].remaining, limits.wait
    (0, datetime.timedelta(seconds=12))

    A date in `Retry-After` is compared with the field `Date`, or with this machine's clock without one.
    """
    lines: dict[str, list[str]] = {"ratelimit": [], "ratelimit-policy": [], "retry-after": [], "date": []}
    for name, value in headers.items() if isinstance(headers, Mapping) else headers:
        if name.lower() in lines:
            lines[name.lower()].append(value)
    invalid = []
    items: tuple[RateLimit, ...] = ()
    policies: tuple[QuotaPolicy, ...] = ()
    retry_after = None
    try:
        items = tuple(_limit(*item) for item in _list(lines["ratelimit"]))
    except _Malformed:
        invalid.append("RateLimit")
    try:
        policies = tuple(_policy(*item) for item in _list(lines["ratelimit-policy"]))
    except _Malformed:
        invalid.append("RateLimit-Policy")
    try:
        retry_after = _retry_after(lines["retry-after"], lines["date"])
    except _Malformed:
        invalid.append("Retry-After")
    return RateLimits(items, policies, retry_after, tuple(invalid))


class _Malformed(ValueError):
    pass


def _limit(name: object, parameters: dict[str, object]) -> RateLimit:
    reset = parameters.get("t")
    return RateLimit(
        _string(name),
        _count(parameters.get("r")),
        None if reset is None else _seconds(_count(reset)),
        _partition_key(parameters),
    )


def _policy(name: object, parameters: dict[str, object]) -> QuotaPolicy:
    window = parameters.get("w")
    if window is not None and _count(window) == 0:
        raise _Malformed
    return QuotaPolicy(
        _string(name),
        _count(parameters.get("q")),
        None if window is None else _seconds(_count(window)),
        _string(parameters.get("qu", "")),
        _partition_key(parameters),
    )


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise _Malformed
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _Malformed
    return value


def _partition_key(parameters: dict[str, object]) -> bytes | None:
    value = parameters.get("pk")
    if value is not None and not isinstance(value, bytes):
        raise _Malformed
    return value


def _seconds(count: int) -> timedelta:
    return wait(count * 1_000_000) or timedelta(0)


def _retry_after(lines: list[str], dates: list[str]) -> timedelta | None:
    if not lines:
        return None
    text = lines[0].strip(" \t")
    if len(lines) > 1 or len(text) > 64:
        raise _Malformed
    if re.fullmatch("[0-9]{1,15}", text):
        return _seconds(int(text))
    until = http_date(text)
    if until is None:
        raise _Malformed
    sent = http_date(dates[0].strip(" \t")) if len(dates) == 1 else None
    return max(timedelta(0), until - (sent or datetime.now(timezone.utc)))


def http_date(text: str) -> datetime | None:
    """A date of HTTP, which is always of GMT."""
    if len(text) > 64 or not text.endswith(" GMT"):
        return None
    try:
        return email.utils.parsedate_to_datetime(text)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None


def _list(lines: list[str]) -> list[tuple[object, dict[str, object]]]:
    """The items of a list (RFC 9651), of which lines are parts."""
    text = ",".join(lines).strip(" ")
    if len(text) > MAX_FIELD_BYTES:
        raise _Malformed
    return _Reader(text).items() if text else []


class _Token(NamedTuple):
    text: str


class _Reader:
    """RFC 9651, section 4.2, without inner lists, which neither field has."""

    _TOKEN = re.compile(r"[A-Za-z*][!#$%&'*+\-.^_`|~0-9A-Za-z:/]*")
    _STRING = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')
    _BYTES = re.compile(r":([A-Za-z0-9+/=]*):")
    _NUMBER = re.compile(r"-?(?:[0-9]{1,12}\.[0-9]{1,3}|[0-9]{1,15})(?![0-9.])")
    _BOOLEAN = re.compile(r"\?([01])")
    _DATE = re.compile(r"@(-?[0-9]{1,15})(?![0-9.])")
    # Bytes in UTF-8, percent-encoded in lower case.
    _DISPLAY = re.compile(r'%"((?:[ !#$&-~]|%[0-9a-f]{2})*)"')
    _KEY = re.compile(r"[a-z*][a-z0-9_\-.*]*")
    _SPACE = re.compile(r" *")
    _OPTIONAL_SPACE = re.compile(r"[ \t]*")

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def items(self) -> list[tuple[object, dict[str, object]]]:
        items: list[tuple[object, dict[str, object]]] = []
        while True:
            items.append((self._bare_item(), self._parameters()))
            if len(items) > MAX_ITEMS:
                raise _Malformed
            self._take(self._OPTIONAL_SPACE)
            if self.at == len(self.text):
                return items
            self._expect(",")
            self._take(self._OPTIONAL_SPACE)

    def _parameters(self) -> dict[str, object]:
        parameters: dict[str, object] = {}
        while self.text.startswith(";", self.at):
            self.at += 1
            self._take(self._SPACE)
            key = self._take(self._KEY)
            if not key:
                raise _Malformed
            value: object = True
            if self.text.startswith("=", self.at):
                self.at += 1
                value = self._bare_item()
            parameters[key[0]] = value
            if len(parameters) > MAX_PARAMETERS:
                raise _Malformed
        return parameters

    def _bare_item(self) -> object:
        if found := self._take(self._STRING):
            return re.sub(r"\\(.)", r"\1", found[1])
        if found := self._take(self._NUMBER):
            return float(found[0]) if "." in found[0] else int(found[0])
        if found := self._take(self._BYTES):
            try:
                return base64.b64decode(found[1] + "=" * (-len(found[1]) % 4), validate=True)
            except binascii.Error:
                raise _Malformed from None
        if found := self._take(self._BOOLEAN):
            return found[1] == "1"
        if found := self._take(self._DATE):
            return _Token(found[1])  # no parameter that is read is a date
        if found := self._take(self._DISPLAY):
            try:
                return _Token(unquote_to_bytes(found[1]).decode())
            except UnicodeDecodeError:
                raise _Malformed from None
        if found := self._take(self._TOKEN):
            return _Token(found[0])
        raise _Malformed

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self.text, self.at)
        if found:
            self.at = found.end()
        return found

    def _expect(self, text: str) -> None:
        if not self.text.startswith(text, self.at):
            raise _Malformed
        self.at += len(text)
