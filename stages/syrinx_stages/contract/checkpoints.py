"""Where a downloaded checkpoint lies in a volume of models: the fetcher writes it, the stages read it."""

import hashlib


def hub_directory(repository: str, revision: str) -> str:
    """Returns the directory of a repository's revision, relative to the volume."""
    return f"{repository.replace('/', '--')}/{revision}"


def s3_directory(uri: str, endpoint: str) -> str:
    """Returns the directory of an `s3://BUCKET/PREFIX`, relative to the volume; `endpoint` is empty for AWS.

    Buckets of different endpoints may have the same name.
    """
    bucket, _, prefix = uri.removeprefix("s3://").strip("/").partition("/")
    server = f"--{hashlib.sha256(endpoint.encode()).hexdigest()[:8]}" if endpoint else ""
    return f"s3--{bucket}{server}/{prefix}".rstrip("/")
