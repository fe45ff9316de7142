"""Which web pages may use the API. A browser that can reach the gateway lets any page try.

CORS keeps other origins from reading responses and from sending JSON. What it does not cover is checked here.
"""

from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from syrinx_stages.gateway.errors import ApiError, error_response, quoted
from syrinx_stages.runtime.http.listening import is_address

_PRIVATE_SUFFIXES = (".localhost", ".internal")
"""Domains that nobody can register."""


def check_origin(http: HTTPConnection, allowed: Sequence[str]) -> None:
    """Raises 403 for a web page of another origin, unless it is allowed.

    For WebSockets, to which browsers do not apply CORS, and for forms, which they send without asking.
    """
    origin = http.headers.get("origin")
    if origin is None or "*" in allowed or origin in allowed:
        return
    if urlsplit(origin).netloc != http.headers.get("host"):
        message = "web pages of this origin are not allowed; add it to the allowed origins"
        raise ApiError(403, message, code="origin_not_allowed")


class RequireLocalHost:
    """Wraps the application. Refuses requests whose `Host` is a public name, which can be that of an attacker's page.

    Its DNS record can change to a loopback address after the page has loaded (DNS rebinding): to the browser the page
    and this gateway then have the same origin.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs one request."""
        host = HTTPConnection(scope).headers.get("host", "") if scope["type"] in ("http", "websocket") else ""
        if _is_public(host):
            message = (
                f"the host {quoted(host)} is not allowed: this gateway serves this machine only; use localhost, or set "
                "API keys or trusted proxies"
            )
            return await error_response(ApiError(403, message, code="host_not_allowed"))(scope, receive, send)
        await self._app(scope, receive, send)


def _is_public(host: str) -> bool:
    """Returns whether a `Host` header has a name that somebody may have registered."""
    name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
    return "." in name and not name.endswith(_PRIVATE_SUFFIXES) and not is_address(name)
