"""Fetching a checkpoint from a real S3 server: resumed, verified, refused, and by whom."""

import asyncio
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import s3
from support.fetching import CODEC, CONFIGS, UNREACHABLE, WEIGHTS, end_fetch, files, repository, same, start_fetch
from support.s3 import S3
from support.tls import Authority, tls_front
from syrinx_stages.contract.checkpoints import s3_directory

BUCKET, PREFIX = "models", "qwen/v1"
URI = f"s3://{BUCKET}/{PREFIX}"
SECRET = "very-secret-access-key"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repository(
        tmp_path_factory.mktemp("s3") / "model", "voice_design", "README.md", "pytorch_model.bin", "other/model.json"
    )


@pytest.fixture(scope="module")
def shared(checkpoint: Path) -> Iterator[S3]:
    with s3.serve() as server:
        server.create(BUCKET)
        server.upload(checkpoint, f"{BUCKET}/{PREFIX}")
        yield server


@pytest.fixture
def server(shared: S3) -> S3:
    """The server with no requests recorded, which lets everybody read and write."""
    shared.requests.clear()
    shared.authenticate(False)
    return shared


def fetch(server_url: str, cache: Path, *parts: str, uri: str = URI, **environment: str) -> tuple[int, str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    settings = {"AWS_ACCESS_KEY_ID": "known", "AWS_SECRET_ACCESS_KEY": SECRET}
    arguments = {"s3": uri, "endpoint": server_url, "parts": " ".join(parts or ("talker",)), "cache": str(cache)}
    return end_fetch(start_fetch(arguments, {**clean, **settings, **environment}), SECRET)


def directory_of(server: S3, cache: Path, uri: str = URI) -> Path:
    return cache / s3_directory(uri, server.url)


def test_fetches_what_the_stages_need_and_complete_files_need_no_server(
    server: S3, checkpoint: Path, tmp_path: Path
) -> None:
    status, output, errors = fetch(server.url, tmp_path, "gateway", "talker")
    directory = directory_of(server, tmp_path)
    assert (status, output) == (0, f"{directory}\n"), errors
    assert files(directory) == CONFIGS | {WEIGHTS}
    assert same(checkpoint, directory, *CONFIGS, WEIGHTS)
    assert all(b"Authorization: AWS4" in head or b"authorization: AWS4" in head for head in server.requests)
    before = len(server.requests)
    assert fetch(server.url, tmp_path, "talker")[0] == 0 and len(server.requests) == before
    assert fetch(server.url, tmp_path, "codec")[0] == 0 and same(checkpoint, directory, CODEC)


def test_a_damaged_partial_file_is_fetched_again(server: S3, checkpoint: Path, tmp_path: Path) -> None:
    etag = server.put(f"{BUCKET}/{PREFIX}/{WEIGHTS}", (checkpoint / WEIGHTS).read_bytes())
    directory = directory_of(server, tmp_path)
    directory.mkdir(parents=True)
    (directory / f".{WEIGHTS}.{etag[:16]}.part").write_bytes(bytes(1 << 20))
    status, _, errors = fetch(server.url, tmp_path)
    assert status == 0 and "the download is corrupt; retrying" in errors, errors
    assert server.ranges(WEIGHTS) == [str(1 << 20), "0"] and same(checkpoint, directory, WEIGHTS)


@pytest.mark.parametrize(("part_size", "times"), [(1 << 20, 1), (900_000, 2)])
def test_the_etag_of_parts_is_verified_or_the_content_must_be_equal_twice(
    server: S3, checkpoint: Path, tmp_path: Path, part_size: int, times: int
) -> None:
    prefix = f"parts/{part_size}"
    server.upload(checkpoint, f"{BUCKET}/{prefix}")
    server.put_parts(f"{BUCKET}/{prefix}/{WEIGHTS}", (checkpoint / WEIGHTS).read_bytes(), part_size)
    server.requests.clear()
    status, _, errors = fetch(server.url, tmp_path, uri=f"s3://{BUCKET}/{prefix}")
    assert status == 0, errors
    assert server.ranges(WEIGHTS) == ["0"] * times
    assert same(checkpoint, directory_of(server, tmp_path, f"s3://{BUCKET}/{prefix}"), WEIGHTS)


def test_a_version_that_was_replaced_is_refused(server: S3, checkpoint: Path, tmp_path: Path) -> None:
    uri = f"s3://{BUCKET}/moved"
    server.upload(checkpoint, f"{BUCKET}/moved")
    assert fetch(server.url, tmp_path, "gateway", uri=uri)[0] == 0
    server.put(f"{BUCKET}/moved/{CODEC}", b"another codec")
    status, _, errors = fetch(server.url, tmp_path, "codec", uri=uri)
    assert status == 1 and "upload each version under a prefix of its own" in errors, errors


def test_errors_say_what_is_missing_or_refused(server: S3, tmp_path: Path) -> None:
    status, _, errors = fetch(server.url, tmp_path, uri="s3://no-such-bucket/v1")
    expected = f"syrinx fetch: {server.url} has no s3://no-such-bucket/v1 (404 NoSuchBucket)\n"
    assert (status, errors) == (1, expected)
    server.authenticate(True)
    status, _, errors = fetch(server.url, tmp_path)
    assert status == 1
    expected = f"does not permit to read {URI} (403 InvalidAccessKeyId; used the credentials of the pod)\n"
    assert errors == f"syrinx fetch: {server.url} {expected}"
    status, _, errors = fetch(UNREACHABLE, tmp_path)
    assert (status, errors.count("retrying in")) == (1, 3)
    assert errors.splitlines()[-1] == f"syrinx fetch: {UNREACHABLE} cannot be reached: Connection refused"


def test_without_an_identity_requests_are_anonymous(server: S3, checkpoint: Path, tmp_path: Path) -> None:
    """The identity of the node, at a link-local address, is never asked for."""
    nobody = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    status, _, errors = fetch(server.url, tmp_path, **nobody)
    assert (status, errors.endswith(f"{URI}/config.json (403; used no credentials)\n")) == (1, True), errors
    server.upload(checkpoint, f"{BUCKET}/public", "public-read")
    status, _, errors = fetch(server.url, tmp_path, uri=f"s3://{BUCKET}/public", **nobody)
    assert status == 0, errors
    assert server.requests and not any(b"uthorization:" in head for head in server.requests)


@pytest.mark.parametrize("uri", ["models/v1", "s3://models/../other", "s3://models//v1", "https://models/v1", "s3://"])
def test_other_uris_are_refused(tmp_path: Path, uri: str) -> None:
    status, _, errors = fetch(UNREACHABLE, tmp_path / "models", uri=uri)
    assert status == 2 and re.search("argument --s3: .* is not of the form s3://BUCKET/PREFIX", errors)
    assert not (tmp_path / "models").exists()


async def test_a_certificate_needs_a_known_authority(server: S3, checkpoint: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tls")
    port = int(server.direct.rpartition(":")[2])
    async with tls_front(port, *authority.server("DNS:localhost")) as front:
        url = f"https://localhost:{front}"
        status, _, errors = await asyncio.to_thread(fetch, url, tmp_path, "gateway")
        assert status == 1 and "a certificate that is not trusted (UnknownIssuer)" in errors, errors
        trusted = {"SSL_CERT_FILE": str(authority.ca_file)}
        status, output, errors = await asyncio.to_thread(fetch, url, tmp_path, "gateway", **trusted)
    assert status == 0, errors
    assert same(checkpoint, Path(output.strip()), "config.json")
