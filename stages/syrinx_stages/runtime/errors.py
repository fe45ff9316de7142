"""Errors that belong to one request or to one start, in words for the person who caused them."""


class RequestError(Exception):
    """This request cannot be served. `param` is the request field to blame, or empty."""

    def __init__(self, message: str, param: str = "") -> None:
        super().__init__(message)
        self.param = param


class SettingsError(ValueError):
    """Settings that this process cannot take; the message names the field. `status` is the HTTP status."""

    def __init__(self, message: str, status: int = 422) -> None:
        super().__init__(message)
        self.status = status


class StartError(Exception):
    """The stage cannot start; the message says why and what would do."""
