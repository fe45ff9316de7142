"""Errors in the shape of the OpenAI API: `{"error": {message, type, param, code}}`.

400: the request is invalid in itself (a value, a name, a combination). 401: no valid API key. 404: no such model or
path. 408: the body did not arrive in time. 413: the body or the reference is too large. 422: the request is valid, but
not for this checkpoint. 426: the path is that of a WebSocket. 429 with `Retry-After`: a limit of the API key. 500: a
stage failed. 503 with `Retry-After`: temporarily unavailable.
"""

import difflib
import json
import math
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

_MAX_QUOTED = 60
"""Characters of a client's string that an error message quotes."""
_MAX_PARAM = 100
"""Characters of a client's field name that `param` repeats."""


class ApiError(Exception):
    """An error response. `param` is the offending request field, if any; `retry_after` is in seconds."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        """The error object."""
        error_type = "invalid_request_error" if self.status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
        if self.status == HTTPStatus.TOO_MANY_REQUESTS:
            error_type = "requests"
        return {"message": self.message, "type": error_type, "param": self.param, "code": self.code}

    def renamed(self, param: str, prefix: str = "") -> "ApiError":
        """Returns the error with the client's name of the field. prefix: what the message begins with after it."""
        message = f"{param}: {prefix}{self.message.removeprefix(f'{self.param}: ')}"
        return ApiError(self.status, message, param=param, code=self.code, retry_after=self.retry_after)


def bad_request(param: str | None, message: str, code: str = "invalid_value") -> ApiError:
    """400: the request is invalid in itself."""
    return ApiError(400, f"{param}: {message}" if param else message, param=param, code=code)


def unknown_field(name: str, of: str, known: Sequence[str], hint: str = "") -> ApiError:
    """400: there is no such field. of: what has the `known` ones. hint: what to do instead, if it is known."""
    close = difflib.get_close_matches(name[:_MAX_PARAM], known, 1)
    hint = hint or (f"did you mean {close[0]}?" if close else f"accepted: {', '.join(known)}")
    message = f"{quoted(name)} is not a field of {of}: {hint}"
    return ApiError(400, message, param=printable(name[:_MAX_PARAM]), code="unknown_field")


def invalid_key(message: str) -> ApiError:
    """401: the request has no valid API key."""
    return ApiError(401, message, code="invalid_api_key")


def too_large(param: str | None, message: str) -> ApiError:
    """413: the body or the reference is too large."""
    return ApiError(413, f"{param}: {message}" if param else message, param=param, code="too_large")


def unsupported(param: str, message: str) -> ApiError:
    """422: this checkpoint does not support the request."""
    return ApiError(422, f"{param}: {message}", param=param, code="unsupported_by_model")


def rate_limited(message: str, retry_after: float) -> ApiError:
    """429: the client is at one of its limits, and probably below it after `retry_after` seconds."""
    return ApiError(429, message, code="rate_limit_exceeded", retry_after=retry_after)


def internal_error(message: str) -> ApiError:
    """500: a stage or the gateway failed."""
    return ApiError(500, message, code="internal_error")


def unavailable(message: str, retry_after: float, code: str = "unavailable") -> ApiError:
    """503: the same request may succeed after `retry_after` seconds."""
    return ApiError(503, message, code=code, retry_after=retry_after)


def quoted(value: str) -> str:
    """A client's string for an error message: printable and short."""
    if len(value) <= _MAX_QUOTED:
        return repr(value)
    return f"{value[:_MAX_QUOTED]!r}… ({len(value)} characters)"


def printable(text: str) -> str:
    """Returns a client's text without control characters, which could change what a terminal shows."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def error_response(error: ApiError) -> Response:
    """The HTTP response to an error. Its body is ASCII, whatever the message quotes."""
    headers = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    if error.status == HTTPStatus.UPGRADE_REQUIRED:
        headers |= {"Connection": "Upgrade", "Upgrade": "websocket"}
    if error.status in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE):
        # The rest of the body is not read, so the connection cannot carry another request.
        headers["Connection"] = "close"
    return Response(json.dumps({"error": error.body()}), error.status, headers, "application/json")
