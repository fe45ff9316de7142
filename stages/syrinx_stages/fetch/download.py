"""Downloads files from a Hugging Face hub: resumes, verifies the digest, retries a limited number of times."""

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar

import httpx
import huggingface_hub
import msgspec
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from syrinx_stages.fetch.store import FetchError, HubUnavailable, Store

TIMEOUT_SECONDS = 30.0
"""Time limit for connecting and between two chunks."""
RETRY_DELAYS = (1.0, 2.0, 4.0)
"""Seconds before each retry. Progress resets the number of failures."""
GROWTH_SECONDS = 3.0
"""A partial file that has not grown for this long is not being downloaded by another process."""
_RETRIABLE = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}
_SHA1_DIGITS = 40

T = TypeVar("T")


class _Corrupt(HubUnavailable):
    """The downloaded content does not match the hub's digest or size."""


class File(msgspec.Struct, frozen=True):
    """A file of a repository."""

    path: str
    size: int
    """Bytes."""
    digest: str
    """SHA-256 of the content, or git's SHA-1 of the blob for small files."""


class Repository:
    """One revision of a repository. The endpoint and the token are `HF_ENDPOINT` and `HF_TOKEN`.

    Its methods raise `FetchError`, or `HubUnavailable` if a retry may succeed.
    """

    def __init__(self, name: str, revision: str) -> None:
        self.name = name
        self.revision = revision
        self._api = huggingface_hub.HfApi()
        self._token = huggingface_hub.get_token()
        # httpx drops the header when it follows a redirect to another host.
        authorization = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        headers = {"Accept-Encoding": "identity", **authorization}
        self._http = httpx.Client(follow_redirects=True, timeout=TIMEOUT_SECONDS, headers=headers)

    def list(self) -> tuple[str, list[File]]:
        """Returns the revision's commit and its files."""
        try:
            info = self._api.model_info(self.name, revision=self.revision, files_metadata=True, timeout=TIMEOUT_SECONDS)
        except HfHubHTTPError as error:
            raise self._status_error(error.response.status_code, error.response.headers) from None
        except (httpx.HTTPError, OSError) as error:
            raise self._connection_error(error) from None
        except HFValidationError as error:
            raise FetchError(f"--id {self.name!r} is not a repository: {error}") from None
        if info.sha is None:
            raise FetchError(f"{self._api.endpoint} does not report the commit of {self.revision} of {self.name}")
        return info.sha, [
            File(entry.rfilename, entry.size, entry.lfs.sha256 if entry.lfs is not None else entry.blob_id)
            for entry in info.siblings or ()
            if entry.size is not None and entry.blob_id is not None
        ]

    def read(self, file: File, commit: str, start: int) -> Iterator[tuple[int, bytes]]:
        """Yields (offset, chunk) from byte `start` on, or from 0 if the hub does not support ranges."""
        url = huggingface_hub.hf_hub_url(self.name, file.path, revision=commit, endpoint=self._api.endpoint)
        headers = {"Range": f"bytes={start}-"} if start else {}
        try:
            with self._http.stream("GET", url, headers=headers) as response:
                if not response.is_success:
                    raise self._status_error(response.status_code, response.headers)
                offset = start if response.status_code == HTTPStatus.PARTIAL_CONTENT else 0
                for chunk in response.iter_bytes():
                    yield offset, chunk
                    offset += len(chunk)
        except httpx.HTTPError as error:
            raise self._connection_error(error) from None

    def _connection_error(self, error: Exception) -> HubUnavailable:
        reason = str(error).partition("\n")[0] or type(error).__name__
        return HubUnavailable(f"{self._api.endpoint} cannot be reached: {reason}")

    def _status_error(self, status: int, headers: Mapping[str, str]) -> FetchError:
        code, hub = headers.get("X-Error-Code"), self._api.endpoint
        token = "the token in HF_TOKEN" if self._token else "no token (set HF_TOKEN)"
        if status in _RETRIABLE or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return HubUnavailable(f"{hub} returns {status} {HTTPStatus(status).phrase}")
        if code == "GatedRepo" or status == HTTPStatus.FORBIDDEN:
            return FetchError(
                f"{self.name} is gated and cannot be read with {token}: accept its terms at "
                f"{hub}/{self.name} and set a token of that account"
            )
        if code == "RevisionNotFound":
            return FetchError(f"{self.name} has no revision {self.revision!r}")
        if code == "EntryNotFound":
            return FetchError(f"a file of {self.name} at {self.revision!r} was deleted during the download")
        if headers.get("X-Error-Message", "").startswith("Invalid credentials"):
            return FetchError(f"{hub} does not accept {token}")
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.NOT_FOUND):
            return FetchError(f"{hub} has no repository {self.name}, or it is private (used {token})")
        return FetchError(f"{hub} returns {status} for {self.name}")


def retry(attempt: Callable[[], T], progress: Callable[[], object], log: Callable[[str], None]) -> T:
    """Returns `attempt()`, retried on `HubUnavailable`. `progress()` returns a value that changes with progress."""
    failures = 0
    while True:
        before = progress()
        try:
            return attempt()
        except HubUnavailable as error:
            failures = 1 if progress() != before and not isinstance(error, _Corrupt) else failures + 1
            if failures > len(RETRY_DELAYS):
                raise
            delay = RETRY_DELAYS[failures - 1]
            log(f"{error}; retrying in {delay:.0f} s")
            time.sleep(delay)


def download(repository: Repository, commit: str, file: File, store: Store, log: Callable[[str], None]) -> None:
    """Downloads a file to the store unless it is there. Raises `FetchError`."""
    partial = store.partial(file.path, file.digest)

    def attempt() -> None:
        _wait_for_other_process(partial)
        if store.has(file.path, file.size):
            return
        _receive(repository, commit, file, partial, store)
        if not _digest_matches(file, partial):
            partial.unlink(missing_ok=True)
            raise _Corrupt(f"{file.path}: the download is corrupt")
        store.publish(partial, file.path)
        if not store.has(file.path, file.size):
            raise HubUnavailable(f"{file.path} was removed by another process")

    if not store.has(file.path, file.size):
        log(f"downloading {file.path} ({file.size / 1e6:.1f} MB)")
        retry(attempt, lambda: _size(partial), log)


def _receive(repository: Repository, commit: str, file: File, partial: Path, store: Store) -> None:
    start = min(_size(partial), file.size)
    # Another process may be writing to the same file: it is not truncated.
    with store.writing(), open(os.open(partial, os.O_WRONLY | os.O_CREAT, 0o644), "wb") as output:
        for offset, chunk in repository.read(file, commit, start):
            if offset + len(chunk) > file.size:
                raise _Corrupt(f"{file.path} is longer than its size of {file.size} bytes")
            output.seek(offset)
            output.write(chunk)


def _wait_for_other_process(partial: Path) -> None:
    """Waits while another process downloads the same file, as long as the file grows."""
    size = _size(partial)
    while size > 0:
        time.sleep(GROWTH_SECONDS)
        size, before = _size(partial), size
        if size == before:
            return


def _digest_matches(file: File, partial: Path) -> bool:
    # Git hashes a blob's header and content; this is not a security feature.
    is_git = len(file.digest) == _SHA1_DIGITS
    digest = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False) if is_git else hashlib.sha256()
    try:
        with partial.open("rb") as content:
            return hashlib.file_digest(content, lambda: digest).hexdigest() == file.digest
    except FileNotFoundError:
        raise HubUnavailable(f"{file.path} was removed by another process") from None
    except OSError as error:
        raise FetchError(f"cannot read {partial}: {error.strerror}") from None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
