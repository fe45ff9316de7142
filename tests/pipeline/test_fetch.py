"""Fetching a checkpoint as pods do: concurrently to one volume, killed midway, refused, disconnected."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

from support.fetching import CODEC, CONFIGS, UNREACHABLE, WEIGHTS, end_fetch, files, repository, same, start_fetch
from support.hub import NAME, TOKEN, Hub, serve
from support.local_pipeline import local_pipeline
from support.required import require
from support.waiting import DEADLINE, until_blocking
from syrinx_operator.resource.spec import default_pipeline

COMMIT = "a" * 40


@pytest.fixture(scope="module", params=["base", "voice_design"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    others = ("README.md", "pytorch_model.bin", "modeling.py", "speech_tokenizer/codec.bin", "other/model.json")
    return repository(tmp_path_factory.mktemp("hub") / "model", request.param, *others)


@pytest.fixture
def hub(checkpoint: Path) -> Iterator[Hub]:
    with serve(checkpoint) as hub:
        yield hub


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repository(tmp_path_factory.mktemp("hub") / "model", "base")


@pytest.fixture
def base_hub(base: Path) -> Iterator[Hub]:
    with serve(base) as hub:
        yield hub


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Where the main revision is fetched to."""
    return tmp_path / "acme--small-tts" / "main"


def start(hub_url: str, cache: Path, parts: str = "talker", token: str = "", **options: str) -> subprocess.Popen[str]:
    values = {"id": NAME, "revision": "main", "parts": parts, "cache": str(cache), **options}
    return start_fetch(
        values, {**os.environ, "HF_ENDPOINT": hub_url, "HF_TOKEN": token, "HOME": str(cache.parent / "home")}
    )


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    return end_fetch(process, TOKEN)


def fetch(hub_url: str, cache: Path, *arguments: str, **options: str) -> tuple[int, str, str]:
    return end(start(hub_url, cache, *arguments, **options))


def partial_files(directory: Path) -> list[Path]:
    return [*directory.rglob("*.part"), *directory.rglob("*.tmp")]


@pytest.mark.parametrize("parts", ["gateway", "talker", "codec"])
def test_fetches_only_the_files_that_a_stage_needs(hub: Hub, tmp_path: Path, parts: str) -> None:
    base = json.loads((hub.directory / "config.json").read_text())["tts_model_type"] == "base"
    weights = {"gateway": set(), "talker": {WEIGHTS, CODEC} if base else {WEIGHTS}, "codec": {CODEC}}
    status, output, errors = fetch(hub.url, tmp_path / "models", parts)
    directory = tmp_path / "models" / "acme--small-tts" / "main"
    assert (status, output) == (0, f"{directory}\n"), errors
    assert files(directory) == CONFIGS | weights[parts]
    assert same(hub.directory, directory, *files(directory))
    assert not partial_files(directory)
    outside = {path for path in files(tmp_path) if not path.startswith("models/acme--small-tts/main/")}
    assert not outside, "nothing outside the cache"


def test_complete_files_need_no_hub_and_corrupt_ones_are_fetched_again(
    base_hub: Hub, tmp_path: Path, target: Path
) -> None:
    assert fetch(base_hub.url, tmp_path)[0] == 0
    assert fetch(UNREACHABLE, tmp_path)[0] == 0
    (target / WEIGHTS).write_bytes(b"x")
    assert fetch(UNREACHABLE, tmp_path)[0] == 1
    assert fetch(base_hub.url, tmp_path)[0] == 0
    assert same(base_hub.directory, target, WEIGHTS)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_resumes_after_being_killed(base_hub: Hub, tmp_path: Path, target: Path, number: signal.Signals) -> None:
    base_hub.full_speed.clear()
    killed = start(base_hub.url, tmp_path)
    until_blocking(lambda: base_hub.sent > 200_000, "some of the weights were received")
    killed.send_signal(number)
    assert killed.wait(DEADLINE) == (-number if number == signal.SIGKILL else 128 + number)
    killed.communicate()
    assert not (target / WEIGHTS).exists()
    base_hub.full_speed.set()
    status, _, errors = fetch(base_hub.url, tmp_path)
    assert status == 0, errors
    path, begin = base_hub.resolved[-2]
    assert path == WEIGHTS and int(begin.removeprefix("bytes=").rstrip("-")) >= 100_000
    assert same(base_hub.directory, target, WEIGHTS)
    assert not partial_files(target)


def test_concurrent_processes_download_a_file_once(base_hub: Hub, tmp_path: Path) -> None:
    base_hub.full_speed.clear()
    first = start(base_hub.url, tmp_path)
    until_blocking(lambda: base_hub.sent, "the download had begun")
    second = start(base_hub.url, tmp_path)
    time.sleep(1.5)
    base_hub.full_speed.set()
    assert (end(first)[0], end(second)[0]) == (0, 0)
    assert [path for path, _ in base_hub.resolved].count(WEIGHTS) == 1


def test_stopped_process_does_not_block_others(base_hub: Hub, tmp_path: Path, target: Path) -> None:
    base_hub.full_speed.clear()
    stuck = start(base_hub.url, tmp_path)
    until_blocking(lambda: base_hub.sent > 200_000, "some of the weights were received")
    stuck.send_signal(signal.SIGSTOP)
    base_hub.full_speed.set()
    status, _, errors = fetch(base_hub.url, tmp_path)
    stuck.send_signal(signal.SIGCONT)
    assert status == 0, errors
    assert end(stuck)[0] == 0
    assert same(base_hub.directory, target, WEIGHTS)
    assert not partial_files(target)


def test_all_parts_are_from_one_commit_if_the_branch_moves(base_hub: Hub, tmp_path: Path) -> None:
    base_hub.commits["old"] = COMMIT
    assert fetch(base_hub.url, tmp_path, "gateway")[0] == 0
    base_hub.commits["main"] = "b" * 40
    assert fetch(base_hub.url, tmp_path, "codec")[0] == 0
    commits = [json.loads(path.read_text())["commit"] for path in tmp_path.rglob(".complete-*.json")]
    assert commits == [COMMIT, COMMIT]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"revision": "nope"}, r"acme/small-tts has no revision 'nope'"),
        ({"id": "acme/none"}, r"has no repository acme/none, or it is private \(used no token"),
        ({"id": "acme/none", "token": TOKEN}, r"no repository acme/none.*used the token in HF_TOKEN"),
        ({"token": "hf_unknown"}, r"does not accept the token in HF_TOKEN"),
    ],
)
def test_missing_repository_or_revision_is_a_one_line_error(
    base_hub: Hub, tmp_path: Path, options: dict[str, str], message: str
) -> None:
    status, output, errors = fetch(base_hub.url, tmp_path, **options)
    assert (status, output, errors.count("\n")) == (1, "", 1)
    assert re.search(message, errors), errors
    assert "hf_unknown" not in errors


@pytest.mark.parametrize(("token", "message"), [("", "with no token (set HF_TOKEN)"), (TOKEN, "the token in HF_TOKEN")])
def test_gated_repository_error_links_to_its_terms(base_hub: Hub, tmp_path: Path, token: str, message: str) -> None:
    base_hub.gated = True
    status, _, errors = fetch(base_hub.url, tmp_path, token=token)
    assert status == 1
    assert f"accept its terms at {base_hub.url}/{NAME}" in errors and message in errors


def test_token_is_sent_to_the_hub_only(base_hub: Hub, tmp_path: Path) -> None:
    assert fetch(base_hub.url, tmp_path, token=TOKEN)[0] == 0
    assert len(base_hub.redirected) == 2
    assert not any("authorization" in map(str.lower, headers) for headers in base_hub.redirected)


def test_interrupted_bodies_are_resumed(base_hub: Hub, tmp_path: Path, target: Path) -> None:
    base_hub.cut_after = 300_000
    status, _, errors = fetch(base_hub.url, tmp_path)
    assert status == 0, errors
    assert [path for path, _ in base_hub.resolved].count(WEIGHTS) == 6
    assert same(base_hub.directory, target, WEIGHTS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-1] + b"?", "the download is corrupt"),
        (lambda data: data[:-1], "the download is corrupt"),
        (lambda data: data + b"?", "longer than its size"),
    ],
)
def test_corrupt_download_is_never_published(
    base_hub: Hub, tmp_path: Path, target: Path, change: Callable[[bytes], bytes], message: str
) -> None:
    base_hub.change = change
    status, _, errors = fetch(base_hub.url, tmp_path)
    assert (status, message in errors.splitlines()[-1]) == (1, True), errors
    assert files(target) == CONFIGS
    base_hub.change = lambda data: data
    status, _, errors = fetch(base_hub.url, tmp_path)
    assert status == 0, errors


def test_outage_is_retried_a_limited_number_of_times(base_hub: Hub, tmp_path: Path) -> None:
    base_hub.outage = 3
    status, _, errors = fetch(base_hub.url, tmp_path)
    assert status == 0 and "returns 503 Service Unavailable; retrying in" in errors, errors
    base_hub.outage = 1000
    status, _, errors = fetch(base_hub.url, tmp_path / "other")
    assert (status, errors.count("retrying in")) == (1, 3)
    assert errors.splitlines()[-1] == f"syrinx fetch: {base_hub.url} returns 503 Service Unavailable"
    status, _, errors = fetch(UNREACHABLE, tmp_path / "other")
    assert (status, errors.count("retrying in")) == (1, 3)
    assert errors.splitlines()[-1].startswith(f"syrinx fetch: {UNREACHABLE} cannot be reached: ")


def test_invalid_checkpoint_is_refused_before_its_weights_are_fetched(tmp_path: Path, base: Path) -> None:
    directory = shutil.copytree(base, tmp_path / "repository")
    (directory / "config.json").write_text('{"tts_model_type": "singer"}')
    with serve(directory) as hub:
        status, _, errors = fetch(hub.url, tmp_path / "models")
        assert status == 1 and "tts_model_type 'singer' is unknown" in errors
        (directory / WEIGHTS).unlink()
        shutil.rmtree(directory / "speech_tokenizer")
        status, _, errors = fetch(hub.url, tmp_path / "models")
        assert status == 1
        assert "acme/small-tts at main is not a Qwen3-TTS checkpoint: it has no speech_tokenizer/*.json" in errors
        assert not hub.sent


def test_full_volume_is_a_clear_error(base_hub: Hub, tmp_path: Path) -> None:
    inside = f'mount -t tmpfs -o size=600k full {tmp_path} && exec "$@"'
    enter = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", inside, "sh"]
    mounts = shutil.which("unshare") and subprocess.run([*enter, "true"], capture_output=True).returncode == 0
    require(mounts, "no volume can be mounted here: allow user namespaces")
    arguments = {"id": NAME, "revision": "main", "parts": "talker", "cache": str(tmp_path)}
    status, _, errors = end(start_fetch(arguments, {**os.environ, "HF_ENDPOINT": base_hub.url}, *enter))
    assert status == 1
    expected = f"syrinx fetch: cannot write to {tmp_path}/acme--small-tts/main: No space left on device"
    assert errors.splitlines()[-1] == expected


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("id", value) for value in ("none", "../up", "a/b/c")),
        *(("revision", value) for value in ("../up", "a/../../b")),
        ("parts", "x"),
    ],
)
def test_arguments_outside_the_cache_are_refused(tmp_path: Path, option: str, value: str) -> None:
    status, _, errors = fetch(UNREACHABLE, tmp_path / "models", **{option: value})
    assert (status, f"argument --{option}: " in errors) == (2, True), errors
    assert not (tmp_path / "models").exists()


def test_revision_may_contain_slashes(base_hub: Hub, tmp_path: Path) -> None:
    base_hub.commits["refs/pr/1"] = COMMIT
    assert fetch(base_hub.url, tmp_path, "gateway", revision="refs/pr/1")[0] == 0
    assert files(tmp_path) == {f"acme--small-tts/refs/pr/1/{path}" for path in CONFIGS}


async def test_pipeline_serves_a_fetched_checkpoint(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = repository(tmp_path_factory.mktemp("hub") / "model", "voice_design")
    with serve(directory) as hub:
        for parts in ("gateway", "talker", "codec"):
            status, output, errors = fetch(hub.url, tmp_path, parts)
            assert status == 0, errors
    pipeline = default_pipeline()
    model = msgspec.structs.replace(pipeline.spec.model, bundled=False, path=output.strip())
    pipeline = msgspec.structs.replace(pipeline, spec=msgspec.structs.replace(pipeline.spec, model=model))
    async with (
        local_pipeline(pipeline, start_timeout=DEADLINE) as running,
        httpx.AsyncClient(base_url=running.gateway_url, timeout=DEADLINE) as client,
    ):
        body = {"input": "Hello.", "instructions": "Softly.", "response_format": "pcm", "max_new_tokens": 8}
        response = await client.post("/v1/audio/speech", json=body)
    assert response.status_code == 200, response.text
    assert len(response.content) > 0
