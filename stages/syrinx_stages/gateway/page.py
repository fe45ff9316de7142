"""The page at `/docs`, which tries speech in the browser and shows `/openapi.json`. It loads nothing from elsewhere."""

import functools
import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

from starlette.responses import HTMLResponse, Response

_FILE = Path(__file__).with_name("page.html")


def page() -> Response:
    """Returns the page."""
    content, headers = _page()
    return HTMLResponse(content, headers=headers)


@functools.cache
def _page() -> tuple[str, dict[str, str]]:
    content = _FILE.read_text("utf-8")
    policy = {
        "default-src": "'none'",
        "script-src": _hash("script", content),
        "style-src": _hash("style", content),
        "img-src": "data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return content, {
        "Content-Security-Policy": "; ".join(f"{directive} {source}" for directive, source in policy.items()),
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }


def _hash(tag: str, content: str) -> str:
    """Returns the source of the only element with this tag, for a Content-Security-Policy."""
    [text] = re.findall(f"<{tag}>(.*?)</{tag}>", content, re.DOTALL)
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
