"""Clips that do not end, from the model to the client: through gateway, talker and codec with the bundled voice."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx
import pytest
from msgspec import structs
from prometheus_client import CollectorRegistry

from guard import checkpoints
from support.gateway import events
from support.http_server import serve
from support.stages import Pipeline, pipeline, receive, request, submit, synthesize
from support.waiting import DEADLINE, until
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import EndReason, RunawayGuard, SpeechRequest, TaskType
from syrinx_stages.contract.settings import ApiConfig, GatewaySettings, StageConfig
from syrinx_stages.gateway.api import create_app
from syrinx_stages.gateway.service import GatewayService
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.runtime.metrics import Metrics
from syrinx_stages.talker.eager_engine import EagerTalkerEngine
from syrinx_stages.talker.prompt import Prepared

TEXT = "The old teacher found two heavy bags."
ENDLESS_SEED = 7
TASK = TaskType.CUSTOM_VOICE


class MissesTheEnd(EagerTalkerEngine):
    """The bundled voice, which never samples its end with one seed."""

    def prepare(self, request: SpeechRequest, codes: bytes, reference: bytes | None) -> Prepared:
        if request.seed == ENDLESS_SEED:
            request = structs.replace(request, sampling=structs.replace(request.sampling, min_frames=10_000))
        return super().prepare(request, codes, reference)


class NeverEnds(MissesTheEnd):
    """It never does with any seed."""

    def prepare(self, request: SpeechRequest, codes: bytes, reference: bytes | None) -> Prepared:
        endless = structs.replace(request, sampling=structs.replace(request.sampling, min_frames=10_000))
        return super().prepare(endless, codes, reference)


class Speaking:
    """A pipeline and a client of it."""

    def __init__(self, stages: Pipeline, http: httpx.AsyncClient, registry: CollectorRegistry) -> None:
        self.stages, self._http, self._registry = stages, http, registry

    async def say(self, **fields: object) -> httpx.Response:
        body = {"input": TEXT, "voice": "us", "response_format": "pcm", "seed": ENDLESS_SEED, **fields}
        response = await self._http.post("/v1/audio/speech", json=body)
        assert response.status_code == 200, response.text
        return response

    async def say_batch(self) -> dict[str, object]:
        items = [{"input": TEXT, "seed": ENDLESS_SEED}, {"input": TEXT, "seed": 1}]
        return (await self._http.post("/v1/audio/speech/batch", json={"voice": "us", "items": items})).json()

    def requests(self, outcome: str) -> float:
        return self._registry.get_sample_value("syrinx_requests_total", {"task_type": TASK, "outcome": outcome}) or 0.0

    def streams(self, outcome: str) -> float:
        labels = {"task_type": TASK, "arm": "", "outcome": outcome}
        return self._registry.get_sample_value("syrinx_stream_outcomes_total", labels) or 0.0


@contextlib.asynccontextmanager
async def speaking(engine: type[EagerTalkerEngine], **api: bool) -> AsyncIterator[Speaking]:
    registry = CollectorRegistry()
    config = StageConfig(
        pipeline="p",
        generation="g",
        replica="gateway-0",
        model="bundled",
        gateway=GatewaySettings(max_queue_seconds=600.0),
        api=ApiConfig(**api),
    )
    async with pipeline(talker_engine=engine) as stages:
        service = GatewayService(config, [stages.connector()], Metrics(registry))
        await service.start()
        async with (
            serve(create_app(service)) as url,
            httpx.AsyncClient(base_url=url, timeout=DEADLINE, trust_env=False) as http,
        ):
            yield Speaking(stages, http, registry)
        await service.close()


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """The bundled voice without an end: its probability is always near 0."""
    return Checkpoint(str(checkpoints.write(tmp_path_factory.mktemp("endless") / "voice", TASK, ends=False)))


async def test_a_whole_file_is_made_again_with_another_seed() -> None:
    async with speaking(MissesTheEnd) as speech:
        first = await speech.say(stream=False)
        assert (first.headers["X-Finish-Reason"], first.headers["X-Retries"]) == ("stop", "1")
        assert (speech.requests("runaway"), speech.requests("stop")) == (1, 1)
        seed = int(first.headers["X-Seed"])
        assert seed != ENDLESS_SEED
        again = await speech.say(stream=False, seed=seed)
        assert (again.content, again.headers["X-Retries"]) == (first.content, "0")
        assert (await speech.say(stream=False)).content == first.content, "a seed determines its retries, too"


async def test_a_file_that_no_seed_ends_is_the_good_part_and_says_so() -> None:
    async with speaking(EagerTalkerEngine) as healthy, speaking(NeverEnds) as speech:
        response = await speech.say(stream=False)
        assert (response.headers["X-Finish-Reason"], response.headers["X-Retries"]) == ("runaway", "2")
        assert speech.requests("runaway") == 3
        # The model wanted to end there, so nothing is missing.
        seed = int(response.headers["X-Seed"])
        assert response.content == (await healthy.say(stream=False, seed=seed)).content


async def test_another_seed_cannot_help_greedy_decoding() -> None:
    async with speaking(NeverEnds) as speech:
        response = await speech.say(stream=False, temperature=0, subtalker_temperature=0)
        assert (response.headers["X-Finish-Reason"], response.headers["X-Retries"]) == ("runaway", "0")


async def test_a_batch_makes_its_items_again() -> None:
    async with speaking(MissesTheEnd) as speech:
        first, second = (await speech.say_batch())["results"]
    assert (first["finish_reason"], first["retries"]) == ("stop", 1)
    assert first["seed"] != ENDLESS_SEED
    assert (second["finish_reason"], second["seed"], "retries" in second) == ("stop", 1, False)


async def test_a_stream_ends_at_the_last_good_place_and_says_why() -> None:
    async with speaking(EagerTalkerEngine) as healthy, speaking(MissesTheEnd) as speech:
        *_, done = events((await speech.say(stream_format="sse")).text.encode())
        assert done["type"] == "speech.audio.done"
        assert done["finish_reason"] == "runaway"
        await until(lambda: speech.requests("runaway"), "the request is counted")
        # A busy machine may interrupt the stream before.
        assert speech.streams("runaway") + speech.streams("interrupted") == speech.requests("runaway") == 1
        *_, whole = events((await healthy.say(stream_format="sse")).text.encode())
        assert whole["finish_reason"] == "stop"
        assert 0 <= done["usage"]["output_tokens"] - whole["usage"]["output_tokens"] <= 2 * FAMILY.frames_per_second


@pytest.mark.parametrize(("api", "fields"), [({"runaway_guard": False}, {}), ({}, {"runaway_guard": False})])
async def test_without_the_guard_only_the_length_limit_ends_a_clip(api: dict[str, bool], fields: dict) -> None:
    async with speaking(MissesTheEnd, **api) as speech:
        response = await speech.say(stream=False, max_new_tokens=120, **fields)
        assert (response.headers["X-Finish-Reason"], response.headers["X-Retries"]) == ("length", "0")
        guarded = await speech.say(stream=False, max_new_tokens=120, runaway_guard=True)
        assert guarded.headers["X-Retries"] == "1"


async def test_a_limit_that_comes_first_is_a_length() -> None:
    async with speaking(MissesTheEnd) as speech:
        response = await speech.say(stream=False, max_new_tokens=10)
        assert (response.headers["X-Finish-Reason"], response.headers["X-Retries"]) == ("length", "0")


def runaway(name: str, **fields: object) -> SpeechRequest:
    guard = RunawayGuard(expected_frames=35, late_frames=40, max_frames=55)
    return request(name, TEXT, guard=guard, **fields)


async def test_the_verdict_does_not_depend_on_the_batch(endless: Checkpoint) -> None:
    async with pipeline(checkpoint=endless) as stages:
        connector = stages.connector()
        alone = await synthesize(connector, runaway("a", live=False))
        others = [request(f"n{index}", TEXT, max_frames=60, live=False) for index in range(3)]
        *_, together = await asyncio.gather(
            *(synthesize(stages.connector(), item) for item in [*others, runaway("a", live=False)])
        )
    assert alone.end is not None
    assert alone.end.reason is EndReason.RUNAWAY
    assert 20 < alone.chunks[-1] <= 40
    assert (together.pcm, together.end) == (alone.pcm, alone.end)


@pytest.mark.parametrize("frames", [2, 16])
async def test_a_talker_that_takes_a_runaway_over_ends_it_at_the_same_place(endless: Checkpoint, frames: int) -> None:
    async with pipeline(checkpoint=endless) as stages:
        expected = await synthesize(stages.connector(), runaway("a", live=False))
        gateway, talker = stages.connector(), stages.workers[0]
        await submit(gateway, runaway("b", live=False, seed=runaway("a").seed))
        await receive(stages.connector(), "b", until_frames=frames)
        assert "b" in talker.rows, "it is still generated"
        await stages.kill(talker)
        await stages.talker("talker-1")
        received = await receive(stages.connector(), "b")
    assert received.talkers == ["talker-0", "talker-1"]
    assert (received.pcm, received.end) == (expected.pcm, expected.end)


async def test_a_talker_counts_what_it_stops(endless: Checkpoint) -> None:
    async with pipeline(checkpoint=endless) as stages:
        talker = stages.workers[0]
        received = await synthesize(stages.connector(), runaway("a"))
        registry = talker.metrics.registry
        await until(lambda: not talker.rows, "the row is free")
        assert received.end is not None
        assert received.end.reason is EndReason.RUNAWAY
        assert 20 < received.chunks[-1] <= 56
        counts = [
            registry.get_sample_value("syrinx_runaways_total", {"signal": each}) or 0 for each in ("babble", "duration")
        ]
        assert sum(counts) == 1


def test_the_endless_checkpoint_is_the_bundled_one_but_for_its_end(endless: Checkpoint) -> None:
    bundled, eos = Checkpoint("bundled").load_talker(), endless.config.talker_config.codec_eos_token_id
    head, other = bundled.codec_head.weight, endless.load_talker().codec_head.weight
    differs = (head != other).any(1)
    assert differs.nonzero().flatten().tolist() == [eos]
