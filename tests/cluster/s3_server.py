"""Serves the bundled checkpoint as s3://voices/v1, from a container of the stages' image: what a download asks for.

Reading needs lists of a folder, and objects from an offset. What other S3 servers do is tested elsewhere.
"""

import hashlib
import re
from collections.abc import Mapping
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from urllib.parse import parse_qs, urlsplit

import syrinx_stages

VOICE = Path(syrinx_stages.__file__).parent / "voice"
BUCKET, PREFIX = "/voices", "v1/"
PORT = 8333
FILES = {PREFIX + path.relative_to(VOICE).as_posix(): path.read_bytes() for path in VOICE.rglob("*") if path.is_file()}
ETAGS = {key: f'"{hashlib.md5(data).hexdigest()}"' for key, data in FILES.items()}


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Lists a folder, or sends an object from an offset."""
        url = urlsplit(self.path)
        if "list-type=2" in url.query:
            return self._send(200, _list(parse_qs(url.query).get("prefix", [""])[0]))
        key = url.path.removeprefix(f"{BUCKET}/")
        if key not in FILES:
            return self._send(404, b"<Error><Code>NoSuchKey</Code></Error>")
        found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        data, start = FILES[key], int(found[1]) if found else 0
        headers = {"ETag": ETAGS[key], "Last-Modified": formatdate(0, usegmt=True)}
        if found:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self._send(206 if found else 200, data[start:], headers)

    def _send(self, status: int, data: bytes, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


def _list(prefix: str) -> bytes:
    """Returns the objects directly below a prefix, as XML."""
    keys = [key for key in FILES if key.startswith(prefix) and "/" not in key.removeprefix(prefix)]
    entries = "".join(
        f"<Contents><Key>{key}</Key><LastModified>1970-01-01T00:00:00.000Z</LastModified>"
        f"<ETag>{ETAGS[key]}</ETag><Size>{len(FILES[key])}</Size></Contents>"
        for key in sorted(keys)
    )
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>".encode()


if __name__ == "__main__":
    ThreadingHTTPServer(("", PORT), Handler).serve_forever()
