"""A checkpoint under a prefix of an S3 bucket."""

import hashlib
import math
import os
import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from io import BufferedReader

import obstore
from obstore.exceptions import BaseError, PreconditionError
from obstore.store import S3Store

from syrinx_stages.fetch.download import TIMEOUT_SECONDS, File
from syrinx_stages.fetch.parts import CONFIGS, WEIGHTS, select
from syrinx_stages.fetch.store import FetchError, SourceUnavailable

IDENTITIES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
)
"""Variables of an identity that was given to the pod. Without one, requests are anonymous: the node's is not used."""
_FOLDERS = (None, "speech_tokenizer")
_NAMES = (".json", ".txt", ".safetensors")
_CHUNK = 1 << 18
_PART = 1 << 20
"""Bytes of which the parts of a multipart upload are multiples."""
_STATUS = re.compile(r"status code: (\d{3})")
_CAUSE = re.compile(r'(?:message|error): "([^"]+)"')
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w+)")
_CODE = re.compile(r"<Code>(\w{1,100})</Code>")


class Bucket:
    """The objects below `s3://BUCKET/PREFIX`. Region and credentials are those of AWS's environment variables."""

    # A multipart upload may have parts of any size, and the ETag of an object encrypted with a key of KMS is random.
    digests_are_exact = False

    def __init__(self, uri: str, endpoint: str = "") -> None:
        """`endpoint` is the URL of another server than AWS."""
        self.uri = uri.rstrip("/")
        self._endpoint = endpoint or "S3"
        self._has_identity = any(os.environ.get(name) for name in IDENTITIES)
        bucket, _, prefix = self.uri.removeprefix("s3://").partition("/")
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        limit = timedelta(seconds=TIMEOUT_SECONDS)
        self._store = S3Store(
            bucket,
            endpoint=endpoint or f"https://s3.{region}.amazonaws.com",
            region=region,
            prefix=prefix or None,
            skip_signature=not self._has_identity,
            client_options={
                "allow_http": endpoint.startswith("http://"),
                "connect_timeout": limit,
                "read_timeout": limit,
                # Of a whole response: none.
                "timeout": timedelta(days=1),
            },
            retry_config={"max_retries": 0},
        )

    def __str__(self) -> str:
        return self.uri

    def files(self, version: str | None = None) -> tuple[str, list[File]]:
        """Returns the version of the bucket, the hash of names, sizes and ETags, and its files: it has no other one."""
        try:
            pages = [self._store.list_with_delimiter(folder) for folder in _FOLDERS]
        except (BaseError, OSError) as error:
            raise self._error(error, self.uri) from None
        files = [
            File(entry["path"], entry["size"], (entry["e_tag"] or "").strip('"'))
            for page in pages
            for entry in page["objects"]
            if entry["path"].endswith(_NAMES)
        ]
        for patterns in (CONFIGS, *WEIGHTS.values()):  # An upload may be in progress: pin no part of one.
            select(self, files, patterns)
        listing = sorted((file.path, file.size, file.digest) for file in files)
        found = hashlib.sha256(repr(listing).encode()).hexdigest()
        if version not in (None, found):
            raise FetchError(
                f"{self.uri} is not what is in the cache: upload each version under a prefix of its own, and set that "
                "prefix; to replace this one, delete its directory from the cache"
            )
        return found, files

    def read(self, file: File, start: int) -> Iterator[tuple[int, bytes]]:
        """Yields (offset, chunk) from byte `start` on, of the object with this ETag."""
        if start == file.size:
            return
        try:
            found = obstore.get(
                self._store, file.path, options={"if_match": f'"{file.digest}"', "range": {"offset": start}}
            )
            offset = found.range[0]
            for chunk in found.stream(min_chunk_size=_CHUNK):
                data = bytes(chunk)
                yield offset, data
                offset += len(data)
        except (BaseError, OSError) as error:
            raise self._error(error, f"{self.uri}/{file.path}") from None

    def digest(self, file: File, content: BufferedReader) -> str:
        """Returns the ETag of the content, for parts of a size that gives the object's ETag if there is one."""
        whole = hashlib.md5(usedforsecurity=False)
        parts = [_Parts(size) for size in _part_sizes(file)]
        while data := content.read(_CHUNK):
            whole.update(data)
            for each in parts:
                each.update(data)
        found = [each.etag() for each in parts]
        return file.digest if file.digest in found else whole.hexdigest()

    def _error(self, error: Exception, name: str) -> FetchError:
        text = str(error)
        status, code = (found[1] if (found := each.search(text)) else "" for each in (_STATUS, _CODE))
        described = " ".join(filter(None, (status, code)))
        used = "the credentials of the pod" if self._has_identity else "no credentials"
        if isinstance(error, PreconditionError):
            return FetchError(f"{name} was replaced during the download")
        if isinstance(error, FileNotFoundError) or status == "404":
            return FetchError(f"{self._endpoint} has no {name} ({described})")
        if status in ("301", "307", "400"):
            return FetchError(f"{self._endpoint} returns {described} for {name}: check the region and the endpoint")
        if status in ("401", "403"):
            return FetchError(f"{self._endpoint} does not permit to read {name} ({described}; used {used})")
        if status and status < "500" and status not in ("408", "429"):
            return FetchError(f"{self._endpoint} returns {described} for {name}")
        if status:
            return SourceUnavailable(f"{self._endpoint} returns {described}")
        if found := _CERTIFICATE.search(text):
            return FetchError(
                f"{self._endpoint} has a certificate that is not trusted ({found[1]}); for a CA of your own set "
                "SSL_CERT_FILE to its file"
            )
        # The first line names no cause; the rest is the library's debug output.
        cause = found[1] if (found := _CAUSE.search(text)) else text.partition("\n")[0].rpartition(" - ")[2]
        return SourceUnavailable(f"{self._endpoint} cannot be reached: {cause}")


class _Parts:
    """The ETag of a multipart upload: the MD5 of the MD5s of its parts."""

    def __init__(self, part_size: int) -> None:
        self._chunks = part_size // _CHUNK
        self._seen = 0
        self._digests: list[bytes] = []
        self._part = hashlib.md5(usedforsecurity=False)

    def update(self, chunk: bytes) -> None:
        self._part.update(chunk)
        self._seen += 1
        if self._seen % self._chunks == 0:
            self._close()

    def _close(self) -> None:
        self._digests.append(self._part.digest())
        self._part = hashlib.md5(usedforsecurity=False)

    def etag(self) -> str:
        if self._seen % self._chunks:
            self._close()
        digests = b"".join(self._digests)
        return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(self._digests)}"


def _part_sizes(file: File) -> Sequence[int]:
    """Returns the part sizes that give a file the number of parts in its ETag."""
    _, is_multipart, count = file.digest.partition("-")
    if not is_multipart or not count.isdecimal() or int(count) < 1:
        return ()
    smallest = math.ceil(file.size / int(count) / _PART)
    largest = file.size / (int(count) - 1) / _PART if int(count) > 1 else smallest
    sizes = (number * _PART for number in range(max(smallest, 1), math.ceil(largest) + 1))
    return [size for size in sizes if math.ceil(file.size / size) == int(count)]
