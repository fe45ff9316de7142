"""Error responses of the API server."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """An error response (`kind: Status`) with its HTTP code."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.details = details or {}

    def status(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": str(self),
            "code": self.code,
        }
        if self.reason:
            body["reason"] = self.reason
        if self.details:
            body["details"] = self.details
        return body


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def forbidden(message: str) -> ApiError:
    return ApiError(403, "Forbidden", message)


def not_found(what: str, name: str) -> ApiError:
    return ApiError(404, "NotFound", f'{what} "{name}" not found', {"name": name, "kind": what})


def already_exists(what: str, name: str) -> ApiError:
    return ApiError(409, "AlreadyExists", f'{what} "{name}" already exists', {"name": name, "kind": what})


def conflict(what: str, name: str, why: str = "") -> ApiError:
    why = why or "the object has been modified; please apply your changes to the latest version and try again"
    message = f'Operation cannot be fulfilled on {what} "{name}": {why}'
    return ApiError(409, "Conflict", message, {"name": name, "kind": what})


def invalid(kind: str, name: str, *causes: tuple[str, str]) -> ApiError:
    """Returns a 422 error; `causes` are (field, message) pairs."""
    detail = [f"{field}: {message}" for field, message in causes]
    text = detail[0] if len(detail) == 1 else f"[{', '.join(detail)}]"
    details = {
        "name": name,
        "kind": kind,
        "causes": [{"reason": "FieldValueInvalid", "message": message, "field": field} for field, message in causes],
    }
    return ApiError(422, "Invalid", f'{kind} "{name}" is invalid: {text}', details)
