"""A repository on a Hugging Face hub: what is in it, and its files' bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from http import HTTPStatus

import httpx
import huggingface_hub
import msgspec
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from syrinx_stages.fetch.errors import FetchError, Unreachable

SECONDS = 30.0
"""The hub must answer, and go on sending, within this time."""
_PASSING = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}


class File(msgspec.Struct, frozen=True):
    """A file of a repository."""

    path: str
    size: int
    digest: str
    """SHA-256 of the content, or for small files git's SHA-1 of it."""


class Repository:
    """One revision. Endpoint and token come from `HF_ENDPOINT` and `HF_TOKEN`. Raises `FetchError`, `Unreachable`."""

    def __init__(self, name: str, revision: str) -> None:
        self.name = name
        self.revision = revision
        self._api = huggingface_hub.HfApi()
        self._token = huggingface_hub.get_token()
        # Left out where a redirect leads to another host.
        authorization = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        headers = {"Accept-Encoding": "identity", **authorization}
        self._http = httpx.Client(follow_redirects=True, timeout=SECONDS, headers=headers)

    def list(self) -> tuple[str, list[File]]:
        """The commit that the revision is now, and its files."""
        try:
            info = self._api.model_info(self.name, revision=self.revision, files_metadata=True, timeout=SECONDS)
        except HfHubHTTPError as error:
            raise self._refusal(error.response.status_code, error.response.headers) from None
        except (httpx.HTTPError, OSError) as error:
            raise self._unreachable(error) from None
        except HFValidationError as error:
            raise FetchError(f"--id {self.name!r} is no repository: {error}") from None
        if info.sha is None:
            raise FetchError(f"{self._api.endpoint} does not say which commit {self.revision} of {self.name} is")
        return info.sha, [
            File(entry.rfilename, entry.size, entry.lfs.sha256 if entry.lfs is not None else entry.blob_id)
            for entry in info.siblings or ()
            if entry.size is not None and entry.blob_id is not None
        ]

    def read(self, file: File, commit: str, start: int) -> Iterator[tuple[int, bytes]]:
        """The bytes from `start` on, each piece with its place; from 0 on if the hub cannot begin elsewhere."""
        url = huggingface_hub.hf_hub_url(self.name, file.path, revision=commit, endpoint=self._api.endpoint)
        headers = {"Range": f"bytes={start}-"} if start else {}
        try:
            with self._http.stream("GET", url, headers=headers) as response:
                if not response.is_success:
                    raise self._refusal(response.status_code, response.headers)
                at = start if response.status_code == HTTPStatus.PARTIAL_CONTENT else 0
                for piece in response.iter_bytes():
                    yield at, piece
                    at += len(piece)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: Exception) -> Unreachable:
        reason = str(error).partition("\n")[0] or type(error).__name__
        return Unreachable(f"{self._api.endpoint} cannot be reached: {reason}")

    def _refusal(self, status: int, headers: Mapping[str, str]) -> FetchError:
        """What a person can do about an answer that is no success."""
        code = headers.get("X-Error-Code")
        token = "the token in HF_TOKEN" if self._token else "no token (set HF_TOKEN)"
        if status in _PASSING or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return Unreachable(f"{self._api.endpoint} answers {status} {HTTPStatus(status).phrase}")
        if code == "GatedRepo" or status == HTTPStatus.FORBIDDEN:
            return FetchError(
                f"{self.name} may not be read with {token}: it is gated; accept its terms at "
                f"{self._api.endpoint}/{self.name} and give a token of that account"
            )
        if code == "RevisionNotFound":
            return FetchError(f"{self.name} has no revision {self.revision!r}")
        if code == "EntryNotFound":
            return FetchError(f"{self.name} has lost a file of revision {self.revision!r} meanwhile")
        if headers.get("X-Error-Message", "").startswith("Invalid credentials"):
            return FetchError(f"{self._api.endpoint} does not know {token}")
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.NOT_FOUND):
            return FetchError(
                f"{self._api.endpoint} has no repository {self.name}, or it is private: it was asked with {token}"
            )
        return FetchError(f"{self._api.endpoint} answers {status} for {self.name}")
