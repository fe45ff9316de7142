"""Error responses of the API server."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """An error response (`kind: Status`) with its HTTP code."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason

    def status(self) -> dict[str, Any]:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "message": str(self),
            "code": self.code,
            "reason": self.reason,
        }


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def forbidden(message: str) -> ApiError:
    return ApiError(403, "Forbidden", message)


def not_found(what: str, name: str) -> ApiError:
    return ApiError(404, "NotFound", f'{what} "{name}" not found')


def conflict(what: str, name: str, why: str = "the object has been modified") -> ApiError:
    return ApiError(409, "Conflict", f'Operation cannot be fulfilled on {what} "{name}": {why}')


def invalid(kind: str, name: str, *causes: tuple[str, str]) -> ApiError:
    """Returns a 422 error; `causes` are (field, message) pairs."""
    detail = ", ".join(f"{field}: {message}" for field, message in causes)
    return ApiError(422, "Invalid", f'{kind} "{name}" is invalid: {detail}')
