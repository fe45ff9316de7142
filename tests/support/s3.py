"""A real S3 server, moto's, with buckets in memory, behind a relay that records requests."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from support.required import require

FETCHED = Path(sys.prefix) / "s3-server" / "bin" / "moto_server"
"""Where `make test` installs it: its dependencies conflict with the operator's."""
START_SECONDS = 60.0
PIECE = 65_536
OWNER = "AWS4-HMAC-SHA256 Credential=known/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"


@dataclass
class S3:
    """The server. Requests through `url` pass the relay, and those through `direct` do not."""

    direct: str
    url: str = ""
    requests: list[bytes] = field(default_factory=list)
    """The heads of all requests through the relay."""

    def create(self, bucket: str) -> None:
        """Creates a bucket."""
        self._request("PUT", bucket)

    def put(self, path: str, data: bytes, acl: str = "private") -> str:
        """Uploads an object in one part and returns its ETag; `path` is BUCKET/KEY."""
        return self._request("PUT", path, content=data, headers={"x-amz-acl": acl}).headers["ETag"].strip('"')

    def put_parts(self, path: str, data: bytes, part_size: int) -> None:
        """Uploads an object in parts, as other clients do by default."""
        upload = re.search("<UploadId>(.*)</UploadId>", self._request("POST", f"{path}?uploads").text)
        assert upload is not None
        listed = ""
        for number, start in enumerate(range(0, len(data), part_size), 1):
            part = data[start : start + part_size]
            self._request("PUT", f"{path}?partNumber={number}&uploadId={upload[1]}", content=part)
            etag = hashlib.md5(part).hexdigest()
            listed += f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"
        body = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>"
        self._request("POST", f"{path}?uploadId={upload[1]}", content=body.encode())

    def upload(self, directory: Path, prefix: str, acl: str = "private") -> None:
        """Uploads all files of a directory; `prefix` is BUCKET/PREFIX."""
        for path in directory.rglob("*"):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(directory).as_posix()}", path.read_bytes(), acl)

    def _request(
        self, method: str, path: str, *, content: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Sends a request of the owner, whose signature is not checked."""
        signed = {"Authorization": OWNER, **(headers or {})}
        response = httpx.request(method, f"{self.direct}/{path}", content=content, headers=signed, timeout=60)
        return response.raise_for_status()

    def authenticate(self, enabled: bool) -> None:
        """Sets whether requests need an access key that the server knows."""
        httpx.post(f"{self.direct}/moto-api/reset-auth", content="0" if enabled else "inf").raise_for_status()

    def ranges(self, name: str) -> list[str]:
        """Returns the first byte of each request for an object whose name ends with `name`."""
        heads = (head.decode() for head in self.requests if f"{name} HTTP/1.1" in head.decode())
        return [found[1] if (found := re.search(r"(?i)range: bytes=(\d+)-", head)) else "0" for head in heads]


@contextlib.contextmanager
def serve() -> Iterator[S3]:
    """Runs the server for the duration of the block."""
    require(shutil.which(FETCHED), "there is no S3 server: make .venv/.s3-server")
    command = [str(FETCHED), "--host", "127.0.0.1", "--port", "0"]
    environment = {**os.environ, "S3_UPLOAD_PART_MIN_SIZE": "1"}
    with tempfile.NamedTemporaryFile() as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            port = _port_when_listening(process, Path(log.name))
            server = S3(f"http://127.0.0.1:{port}")
            with socket.create_server(("127.0.0.1", 0)) as listener:
                server.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
                threading.Thread(target=_accept, args=(server, listener, port), daemon=True).start()
                yield server
        finally:
            process.kill()
            process.wait()


def _port_when_listening(process: subprocess.Popen[bytes], log: Path) -> int:
    deadline = time.monotonic() + START_SECONDS
    while not (found := re.search(r"Running on http://127\.0\.0\.1:(\d+)", log.read_text())):
        assert process.poll() is None and time.monotonic() < deadline, f"it does not start: {log.read_text()}"
        time.sleep(0.05)
    return int(found[1])


def _accept(server: S3, listener: socket.socket, port: int) -> None:
    with contextlib.suppress(OSError):
        while True:
            client, _ = listener.accept()
            upstream = socket.create_connection(("127.0.0.1", port))
            threading.Thread(target=_requests, args=(server, client, upstream), daemon=True).start()
            threading.Thread(target=_responses, args=(upstream, client), daemon=True).start()


def _requests(server: S3, client: socket.socket, upstream: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := client.recv(PIECE):
            server.requests.append(data)
            upstream.sendall(data)
        upstream.shutdown(socket.SHUT_WR)


def _responses(upstream: socket.socket, client: socket.socket) -> None:
    with contextlib.suppress(OSError), contextlib.ExitStack() as closing:
        closing.callback(client.shutdown, socket.SHUT_RDWR)
        while data := upstream.recv(PIECE):
            client.sendall(data)
