"""A Hugging Face hub on loopback that serves one directory as one repository and can simulate failures.

`/api/models/ID/revision/REV?blobs=True` and `/ID/resolve/COMMIT/PATH` with ranges; large files are
redirected to another host.
"""

import contextlib
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

NAME = "acme/small-tts"
TOKEN = "hf_known"
PIECE = 16_384


@dataclass
class Hub:
    """The hub's state; all of it can change between requests."""

    directory: Path
    commits: dict[str, str] = field(default_factory=lambda: {"main": "a" * 40})
    """Commits by revision; a commit is also a revision."""
    gated: bool = False
    outage: int = 0
    """Number of further requests that get status 503."""
    cut_after: int | None = None
    """Bytes of a body after which the connection is closed."""
    change: Callable[[bytes], bytes] = field(default=lambda data: data)
    """Transforms the content of large files."""
    full_speed: threading.Event = field(default_factory=threading.Event)
    """Until it is set, large files are sent at 320 KB per second."""
    large: tuple[str, ...] = (".safetensors",)
    resolved: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and range of every file request."""
    redirected: list[dict[str, str]] = field(default_factory=list)
    """Headers of the requests to the other host."""
    sent: int = 0
    """Bytes of large files that were sent."""
    url: str = ""

    def paths(self) -> list[str]:
        return sorted(path.relative_to(self.directory).as_posix() for path in self.directory.rglob("*.*"))

    def info(self, commit: str) -> dict[str, object]:
        return {"id": NAME, "sha": commit, "siblings": [self._sibling(path) for path in self.paths()]}

    def _sibling(self, path: str) -> dict[str, object]:
        data = (self.directory / path).read_bytes()
        sibling = {"rfilename": path, "size": len(data), "blobId": hashlib.sha1(b"blob %d\0" % len(data) + data)}
        sibling["blobId"] = sibling["blobId"].hexdigest()
        if path.endswith(self.large):
            sibling["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
        return sibling


@contextlib.contextmanager
def serve(directory: Path) -> Iterator[Hub]:
    """Runs a hub for the duration of the block."""
    hub = Hub(directory)
    hub.full_speed.set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._answer(urlsplit(self.path).path)

        def _answer(self, path: str) -> None:
            if hub.outage > 0:
                hub.outage -= 1
                return self._send(503)
            if path.startswith("/elsewhere/"):
                hub.redirected.append(dict(self.headers))
                return self._content(hub.change((hub.directory / path.removeprefix("/elsewhere/")).read_bytes()))
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            if token not in ("", TOKEN):
                return self._send(401, {"X-Error-Message": "Invalid credentials in Authorization header"})
            if path.startswith(f"/api/models/{NAME}/revision/"):
                return self._info(unquote(path.rpartition("/")[2]))
            if path.startswith(f"/{NAME}/resolve/"):
                return self._resolve(*path.removeprefix(f"/{NAME}/resolve/").split("/", 1), bool(token))
            # The real hub does this for repositories that do not exist, too.
            return self._send(404 if token else 401, {"X-Error-Code": "RepoNotFound"})

        def _info(self, revision: str) -> None:
            commit = hub.commits.get(revision) or (revision if revision in hub.commits.values() else None)
            if commit is None:
                return self._send(404, {"X-Error-Code": "RevisionNotFound"})
            return self._send(200, {"Content-Type": "application/json"}, json.dumps(hub.info(commit)).encode())

        def _resolve(self, commit: str, path: str, known: bool) -> None:
            hub.resolved.append((path, self.headers.get("Range")))
            if commit not in hub.commits.values() or path not in hub.paths():
                return self._send(404, {"X-Error-Code": "EntryNotFound"})
            if hub.gated:
                return self._send(403 if known else 401, {"X-Error-Code": "GatedRepo"})
            if path.endswith(hub.large):
                other = hub.url.replace("127.0.0.1", "localhost")
                return self._send(302, {"Location": f"{other}/elsewhere/{path}"})
            return self._content((hub.directory / path).read_bytes())

        def _content(self, data: bytes) -> None:
            start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
            headers = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if start else {}
            self._send(206 if start else 200, headers, data[start:])

        def _send(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
            self.send_response(status)
            for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if hub.cut_after is not None and len(body) > hub.cut_after:
                body, self.close_connection = body[: hub.cut_after], True
            for start in range(0, len(body), PIECE):
                self.wfile.write(body[start : start + PIECE])
                if self.path.startswith("/elsewhere/"):
                    hub.sent += len(body[start : start + PIECE])
                    hub.full_speed.wait(0.05)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        hub.full_speed.set()
        server.shutdown()
        thread.join()
        server.server_close()
