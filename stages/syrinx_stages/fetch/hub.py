"""A checkpoint in a repository of a Hugging Face hub."""

import hashlib
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from io import BufferedReader

import httpx
import huggingface_hub
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from syrinx_stages.fetch.download import TIMEOUT_SECONDS, File
from syrinx_stages.fetch.store import FetchError, SourceUnavailable

_RETRIABLE = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}
_SHA1_DIGITS = 40


class Repository:
    """One revision of a repository. The endpoint and the token are `HF_ENDPOINT` and `HF_TOKEN`."""

    digests_are_exact = True

    def __init__(self, name: str, revision: str) -> None:
        self.name = name
        self.revision = revision
        self._commit = ""
        self._api = huggingface_hub.HfApi()
        self._token = huggingface_hub.get_token()
        # httpx drops the header when it follows a redirect to another host.
        authorization = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        headers = {"Accept-Encoding": "identity", **authorization}
        self._http = httpx.Client(follow_redirects=True, timeout=TIMEOUT_SECONDS, headers=headers)

    def __str__(self) -> str:
        return f"{self.name} at {self.revision}"

    def files(self, version: str | None = None) -> tuple[str, list[File]]:
        """Returns a commit and its files: that of the revision unless it is given."""
        revision = version or self.revision
        try:
            info = self._api.model_info(self.name, revision=revision, files_metadata=True, timeout=TIMEOUT_SECONDS)
        except HfHubHTTPError as error:
            raise self._status_error(error.response.status_code, error.response.headers) from None
        except (httpx.HTTPError, OSError) as error:
            raise self._connection_error(error) from None
        except HFValidationError as error:
            raise FetchError(f"--id {self.name!r} is not a repository: {error}") from None
        if info.sha is None:
            raise FetchError(f"{self._api.endpoint} does not report the commit of {revision} of {self.name}")
        self._commit = info.sha
        return info.sha, [
            File(entry.rfilename, entry.size, entry.lfs.sha256 if entry.lfs is not None else entry.blob_id)
            for entry in info.siblings or ()
            if entry.size is not None and entry.blob_id is not None
        ]

    def read(self, file: File, start: int) -> Iterator[tuple[int, bytes]]:
        """Yields (offset, chunk) from byte `start` on, or from 0 if the hub does not support ranges."""
        url = huggingface_hub.hf_hub_url(self.name, file.path, revision=self._commit, endpoint=self._api.endpoint)
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

    def digest(self, file: File, content: BufferedReader) -> str:
        """Returns SHA-256, or for a small file git's SHA-1 of the blob, which is no security feature."""
        is_git = len(file.digest) == _SHA1_DIGITS
        digest = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False) if is_git else hashlib.sha256()
        return hashlib.file_digest(content, lambda: digest).hexdigest()

    def _connection_error(self, error: Exception) -> SourceUnavailable:
        reason = str(error).partition("\n")[0] or type(error).__name__
        return SourceUnavailable(f"{self._api.endpoint} cannot be reached: {reason}")

    def _status_error(self, status: int, headers: Mapping[str, str]) -> FetchError:
        code, hub = headers.get("X-Error-Code"), self._api.endpoint
        token = "the token in HF_TOKEN" if self._token else "no token (set HF_TOKEN)"
        if status in _RETRIABLE or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return SourceUnavailable(f"{hub} returns {status} {HTTPStatus(status).phrase}")
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
