"""Errors as clients of the OpenAI API expect them: `{"error": {message, type, param, code}}`.

400: the request is wrong in itself (a value, a name, a combination); 422: the request is fine, but the checkpoint
served here cannot do it (another one could); 404: no such model or path; 408: the body did not arrive in time;
413: body or reference too large; 503 with `Retry-After`: not now; 500: a stage failed.
"""

from __future__ import annotations

import json
import math
from http import HTTPStatus
from typing import Any

from starlette.responses import Response


class ApiError(Exception):
    """What a client is told. `param` is the request field to blame, if one is; `retry_after` is in seconds."""

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
        kind = "invalid_request_error" if self.status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
        return {"message": self.message, "type": kind, "param": self.param, "code": self.code}


def bad(param: str | None, message: str, code: str = "invalid_value") -> ApiError:
    """400: the request is wrong in itself."""
    return ApiError(400, f"{param}: {message}" if param else message, param=param, code=code)


def unsupported(param: str, message: str) -> ApiError:
    """422: this checkpoint cannot do what is asked."""
    return ApiError(422, f"{param}: {message}", param=param, code="unsupported_by_model")


def too_large(param: str | None, message: str) -> ApiError:
    """413: body or reference."""
    return ApiError(413, f"{param}: {message}" if param else message, param=param, code="too_large")


def unavailable(message: str, retry_after: float, code: str = "unavailable") -> ApiError:
    """503: the same request may do later."""
    return ApiError(503, message, code=code, retry_after=retry_after)


def failed(message: str) -> ApiError:
    """500: a stage failed."""
    return ApiError(500, message, code="internal_error")


def shown(value: str) -> str:
    """A client's string as it may stand in a message: printable and short."""
    return repr(value) if len(value) <= 60 else f"{value[:60]!r}… ({len(value)} characters)"


def error_response(error: ApiError, request_id: str | None = None) -> Response:
    """The HTTP answer. The body is pure ASCII, whatever the message quotes."""
    headers = {}
    if request_id:
        headers["X-Request-Id"] = request_id
    if error.retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    if error.status in (408, 413):
        # The rest of the body is not read: the connection cannot carry another request.
        headers["Connection"] = "close"
    return Response(json.dumps({"error": error.body()}), error.status, headers, "application/json")
