"""The web pages: the playground at `/` and the description of the API at `/docs`. They load nothing from elsewhere."""

import functools
from hashlib import sha256
from pathlib import Path

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from syrinx_stages.gateway.errors import ApiError, quoted

ASSETS_PATH = "/assets/{name}"
DOCS, PLAYGROUND = "docs.html", "playground.html"
_FOLDER = Path(__file__).parents[1] / "web"
_DOCS_ASSETS = ("docs.js", "style.css")
"""What `/docs` loads; the other files are the playground's."""
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "connect-src": "'self'",
    # A replay of what was heard.
    "media-src": "blob:",
    "img-src": "data:",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}
_HEADERS = {
    "Content-Security-Policy": "; ".join(f"{directive} {source}" for directive, source in _POLICY.items()),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    # A browser asks each time whether its copy is that of this version.
    "Cache-Control": "no-cache",
}


class _File(Struct, frozen=True):
    content: bytes
    media_type: str
    etag: str


def page(http: Request, name: str) -> Response:
    """Returns a page."""
    return _response(http, _files()[name])


def asset(http: Request, name: str, playground: bool) -> Response:
    """Returns a file that a page loads. Raises 404; also for those of the playground if it is off."""
    file = _files().get(name)
    if file is None or name in (DOCS, PLAYGROUND) or not (playground or name in _DOCS_ASSETS):
        raise ApiError(404, f"{quoted(http.url.path)} does not exist", code="not_found")
    return _response(http, file)


def links() -> Response:
    """Returns what `/` is without the playground: where everything is, relative to it."""
    return JSONResponse(
        {"name": "Syrinx", "speech": "v1/audio/speech", "docs": "docs", "openapi": "openapi.json", "health": "health"}
    )


def _response(http: Request, file: _File) -> Response:
    headers = {**_HEADERS, "ETag": file.etag}
    if http.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)


@functools.cache
def _files() -> dict[str, _File]:
    return {path.name: _load(path) for path in _FOLDER.iterdir() if path.suffix in _MEDIA_TYPES}


def _load(path: Path) -> _File:
    content = path.read_bytes()
    return _File(content, _MEDIA_TYPES[path.suffix], f'"{sha256(content).hexdigest()[:32]}"')
