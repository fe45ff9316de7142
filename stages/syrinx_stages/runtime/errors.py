"""Errors of one request or of one start. Their messages are shown to the person who caused them."""


class RequestError(Exception):
    """The request cannot be served. `param` is the request field that caused it, or empty.

    `retry_after`: seconds after which the same request may succeed; 0 if it would fail again.
    """

    def __init__(self, message: str, param: str = "", retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.param = param
        self.retry_after = retry_after


def stage_failed(stage: str) -> RequestError:
    """Returns the error of a request that a stage itself fails with: its log has the cause."""
    return RequestError(f"the {stage} failed to process this request")


class SettingsError(ValueError):
    """The settings are invalid for this process; the message names the field. `status` is the HTTP status."""

    def __init__(self, message: str, status: int = 422) -> None:
        super().__init__(message)
        self.status = status


class StartError(Exception):
    """The stage cannot start; the message says why and how to fix it."""
