"""Fault injection."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from http import HTTPStatus

from support.kube.errors import ApiError


@dataclass
class Fault:
    """A fault for matching requests, `times` times (None: always). Without an error or a reset they hang."""

    method: re.Pattern[str]
    path: re.Pattern[str]
    times: int | None
    error: ApiError | None = None
    reset: bool = False
    served: bool = False
    """Whether the request takes effect and only its response is lost."""
    hit: int = 0
    """Number of affected requests."""
    released: asyncio.Event = field(default_factory=asyncio.Event)
    struck: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the first request is affected."""

    def release(self) -> None:
        """Removes the fault; hanging requests continue."""
        self.times = 0
        self.released.set()

    def takes(self, method: str, path: str) -> bool:
        if not (self.method.fullmatch(method) and self.path.search(path)):
            return False
        if self.times is not None and self.hit >= self.times:
            return False
        self.hit += 1
        self.struck.set()
        return True


class Faults:
    """The faults of an API server; they apply only to HTTP requests."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._writes_left: int | None = None
        self.stopped = asyncio.Event()
        """Set when the server has stopped (`stop_after_writes`)."""
        self.latency = 0.0
        """Delay of every response in seconds."""

    def fail(self, code: int, method: str = ".*", path: str = "", *, times: int | None = 1) -> Fault:
        """Responds with an error. `method` and `path` are regular expressions."""
        reason = HTTPStatus(code).phrase.replace(" ", "")
        return self._add(method, path, times, error=ApiError(code, reason, f"{reason} on purpose"))

    def hang(self, method: str = ".*", path: str = "", *, times: int | None = 1) -> Fault:
        """Delays the response until the fault is removed."""
        return self._add(method, path, times)

    def reset(self, method: str, path: str, *, served: bool) -> Fault:
        """Closes the connection; with `served` after the request has taken effect."""
        return self._add(method, path, 1, reset=True, served=served)

    def stop_after_writes(self, count: int) -> None:
        """Serves `count` more writes, then closes every connection until `resume`."""
        self._writes_left = count
        self.stopped.clear()

    def resume(self) -> None:
        """Resumes serving after `stop_after_writes`."""
        self._writes_left = None

    def clear(self) -> None:
        """Removes all faults."""
        for fault in self._faults:
            fault.release()
        self._faults.clear()
        self.latency = 0.0
        self.resume()

    def next(self, method: str, path: str) -> Fault | None:
        """Returns the fault for a request."""
        return next((fault for fault in self._faults if fault.takes(method, path)), None)

    def refuses(self, method: str) -> bool:
        """Returns whether the server is stopped; counts writes."""
        if self._writes_left is None:
            return False
        if self._writes_left <= 0:
            self.stopped.set()
            return True
        if method in ("POST", "PUT", "PATCH", "DELETE"):
            self._writes_left -= 1
            if not self._writes_left:
                self.stopped.set()
        return False

    def _add(self, method: str, path: str, times: int | None, **what: object) -> Fault:
        fault = Fault(re.compile(method), re.compile(path), times, **what)
        self._faults.append(fault)
        return fault
