"""One response of HTTP/1.1, read from bytes as they come. Knows no socket, so both clients use it."""

from __future__ import annotations

__all__ = ["BadResponse", "ResponseReader"]

MAX_HEAD_BYTES = 64 * 1024
#: Interim responses (1xx) before the final one.
MAX_INTERIM = 8


class BadResponse(ValueError):
    """What was received is not a response, or exceeds a bound. The connection cannot be used again."""


class ResponseReader:
    """Reads a response to a request that was not HEAD. Feed it until it is `complete`."""

    def __init__(self, max_body: int) -> None:
        self.status = 0
        self.headers: list[tuple[str, str]] = []
        self.body = b""
        self.complete = False
        #: Whether the server keeps the connection, and nothing is left on it.
        self.reusable = False
        self._max_body = max_body
        self._buffer = bytearray()
        self._has_head = False
        self._interim = 0
        self._length: int | None = None
        self._is_chunked = False
        self._chunks = bytearray()

    def feed(self, data: bytes) -> bool:
        """Takes what was received; nothing at all is the end of the connection. Returns `complete`."""
        self._buffer += data
        while not self._has_head:
            end = self._buffer.find(b"\r\n\r\n")
            if end > MAX_HEAD_BYTES or (end < 0 and len(self._buffer) > MAX_HEAD_BYTES):
                raise BadResponse(f"its header has more than {MAX_HEAD_BYTES} bytes")
            if end < 0:
                if not data:
                    raise BadResponse("the connection was closed before a response")
                return False
            head = bytes(self._buffer[:end])
            del self._buffer[: end + 4]
            self._read_head(head.decode("latin-1"))
        if self._is_chunked:
            self._read_chunks()
        elif self._length is not None:
            if len(self._buffer) >= self._length:
                self._finish(bytes(self._buffer[: self._length]), self._length)
        elif len(self._buffer) > self._max_body:
            raise BadResponse(f"its body has more than {self._max_body} bytes")
        elif not data:
            self._finish(bytes(self._buffer), len(self._buffer))
            self.reusable = False
        if not data and not self.complete:
            raise BadResponse("the connection was closed within a response")
        return self.complete

    def _read_head(self, head: str) -> None:
        first, *lines = head.split("\r\n")
        parts = first.split(" ", 2)
        if len(parts) < 2 or parts[0] not in ("HTTP/1.1", "HTTP/1.0") or not _is_digits(parts[1], 3):
            raise BadResponse("it does not begin as HTTP/1.1")
        self.status = int(parts[1])
        self.headers = []
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon or not name or name != name.strip():
                raise BadResponse("a header field is malformed")
            self.headers.append((name.lower(), value.strip(" \t")))
        if self.status < 200:
            self._interim += 1
            if self.status == 101 or self._interim > MAX_INTERIM:
                raise BadResponse(f"unexpected status {self.status}")
            return
        self._has_head = True
        connection = ",".join(value for name, value in self.headers if name == "connection").lower()
        self.reusable = parts[0] == "HTTP/1.1" and "close" not in connection
        codings = [value.lower() for name, value in self.headers if name == "transfer-encoding"]
        lengths = {value for name, value in self.headers if name == "content-length"}
        if codings:
            if codings != ["chunked"] or lengths:
                raise BadResponse("its transfer-encoding is not supported")
            self._is_chunked = True
        elif self.status in (204, 304):
            self._length = 0
        elif lengths:
            text = lengths.pop()
            if lengths or not _is_digits(text):
                raise BadResponse("its content-length is malformed")
            self._length = int(text)
            if self._length > self._max_body:
                raise BadResponse(f"its body has more than {self._max_body} bytes")

    def _read_chunks(self) -> None:
        while not self.complete:
            end = self._buffer.find(b"\r\n")
            if end > 1024 or (end < 0 and len(self._buffer) > 1024):
                raise BadResponse("a chunk is malformed")
            if end < 0:
                return
            text = bytes(self._buffer[:end]).split(b";", 1)[0].strip().decode("latin-1")
            if not 0 < len(text) <= 8 or not all(digit in "0123456789abcdefABCDEF" for digit in text):
                raise BadResponse("a chunk is malformed")
            size = int(text, 16)
            if len(self._chunks) + size > self._max_body:
                raise BadResponse(f"its body has more than {self._max_body} bytes")
            if size == 0:
                self._read_trailers(end)
                return
            if len(self._buffer) < end + 2 + size + 2:
                return
            self._chunks += self._buffer[end + 2 : end + 2 + size]
            if self._buffer[end + 2 + size : end + 4 + size] != b"\r\n":
                raise BadResponse("a chunk is malformed")
            del self._buffer[: end + 4 + size]

    def _read_trailers(self, last_chunk: int) -> None:
        """Trailers are ignored. `last_chunk` is where the line of the last chunk ends."""
        end = self._buffer.find(b"\r\n\r\n", last_chunk)
        if end < 0:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise BadResponse(f"its trailers have more than {MAX_HEAD_BYTES} bytes")
            return
        self._finish(bytes(self._chunks), end + 4)

    def _finish(self, body: bytes, used: int) -> None:
        self.body = body
        self.complete = True
        if len(self._buffer) > used:
            self.reusable = False  # it answers what was not asked


def _is_digits(text: str, count: int | None = None) -> bool:
    return text.isascii() and text.isdigit() and len(text) == (count or len(text)) and len(text) <= 15
