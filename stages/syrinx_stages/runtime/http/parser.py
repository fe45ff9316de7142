"""Parses HTTP/1.1 with h11: strictly, with bounds on what a head may contain and on the time that parsing takes."""

import re
from collections import deque

import h11

MAX_HEAD = 16 * 1024
"""Bytes of a request line and its headers."""
MAX_HEADERS = 100
MAX_TRAILERS = 4 * 1024
"""Bytes of the line with a chunk's length, or of all headers after the last chunk."""
MAX_EVENTS = 128
"""Events that are parsed before others get their turn: about 1 ms."""
_PIECE = 8 * 1024
"""Bytes that are parsed at once, except of a body whose length is known."""
_END = re.compile(rb"\n\r?\n")
_AMBIGUOUS = re.compile(rb"(?<!\r)\n|\n[ \t]|\r(?!\n)")
"""What servers read differently: an LF or a CR alone, and a header that is continued on the next line."""
_URL = re.compile(rb"https?://([^/?]+)(/?.*)", re.IGNORECASE)

Event = h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]


class RequestParser(h11.Connection):
    """The server's end of a connection.

    Refuses requests whose end another server may see elsewhere: an attacker could hide a second request in them.
    """

    def __init__(self) -> None:
        super().__init__(h11.SERVER, MAX_HEAD)
        self._waiting: deque[bytes] = deque()
        """Received data that is not parsed yet."""
        self._chunked = False
        self._left = MAX_EVENTS

    @property
    def interrupted(self) -> bool:
        """Whether `next_event` has returned `PAUSED` although there may be more events."""
        return self._left == 0

    def resume(self) -> None:
        """Allows the next `MAX_EVENTS` events."""
        self._left = MAX_EVENTS

    def receive_data(self, data: bytes) -> None:
        """Adds received data."""
        if data:
            self._waiting.append(data)
        else:
            super().receive_data(data)

    def next_event(self) -> Event:
        """Returns the next event; `PAUSED` also if `interrupted`. Raises `RemoteProtocolError`."""
        if self.interrupted:
            return h11.PAUSED
        self._left -= 1
        while (event := self._next_event()) is h11.NEED_DATA and self._waiting:
            self._feed()
        return event

    def _next_event(self) -> Event:
        if self.their_state is h11.IDLE:
            self._check_head()
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._check_framing(event)
            return _with_path(event)
        if event is h11.NEED_DATA and self._chunked and len(self.trailing_data[0]) > MAX_TRAILERS:
            raise h11.RemoteProtocolError("The trailers are too long", error_status_hint=431)
        return event

    def _feed(self) -> None:
        data = self._waiting.popleft()
        if len(data) > _PIECE and (self._chunked or self.their_state is not h11.SEND_BODY):
            self._waiting.appendleft(data[_PIECE:])
            data = data[:_PIECE]
        super().receive_data(data)

    def _check_head(self) -> None:
        """Checks the bytes of a complete head: its headers do not show how they were written."""
        data, _ = self.trailing_data
        if (found := _END.search(data)) is None:
            return
        if found.end() > MAX_HEAD or data.count(b"\n", 0, found.end()) > MAX_HEADERS + 2:
            raise h11.RemoteProtocolError("The headers are too long or too many", error_status_hint=431)
        if _AMBIGUOUS.search(data, 0, found.end()):
            raise h11.RemoteProtocolError("A line does not end in CR LF, or continues the one before")

    def _check_framing(self, request: h11.Request) -> None:
        if request.http_version not in (b"1.0", b"1.1"):
            raise h11.RemoteProtocolError("The HTTP version is not supported", error_status_hint=505)
        names = {name for name, _ in request.headers}
        self._chunked = b"transfer-encoding" in names
        if self._chunked and (b"content-length" in names or request.http_version < b"1.1"):
            raise h11.RemoteProtocolError("Transfer-Encoding together with Content-Length or HTTP/1.0")


def _with_path(request: h11.Request) -> h11.Request:
    """Returns a request for a path: clients of a proxy send a URL, whose host replaces `Host` (RFC 9112, 3.2.2)."""
    if (url := _URL.fullmatch(request.target)) is None:
        return request
    host, target = url.groups()
    others = [(name, value) for name, value in request.headers.raw_items() if name.lower() != b"host"]
    if not target.startswith(b"/"):
        target = b"/" + target
    return h11.Request(
        method=request.method, target=target, headers=[(b"Host", host), *others], http_version=request.http_version
    )
