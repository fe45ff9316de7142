"""Texts of several sentences through talkers and codecs with the bundled voice, of which some go wrong."""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Sequence

import httpx
import pytest
from msgspec import structs
from prometheus_client import CollectorRegistry

from support.gateway import client_of, events, gateway_service
from support.stages import Pipeline, pipeline, receive, request, submit, synthesize
from support.waiting import until
from syrinx_stages.contract.messages import EndReason, SpeechRequest, TaskType
from syrinx_stages.contract.settings import ApiConfig
from syrinx_stages.model.describe import describe
from syrinx_stages.talker.eager_engine import EagerTalkerEngine
from syrinx_stages.talker.prompt import Prepared

SENTENCES = ["The old teacher found two heavy bags.", "Her brother opened a window.", "Nobody knew where they were."]
TEXT = " ".join(SENTENCES)
READING = describe("bundled").reading
TASK = TaskType.CUSTOM_VOICE


class MissesEnds(EagerTalkerEngine):
    """The bundled voice, which never samples the end of some attempts, by the end of their ids."""

    missed: Sequence[str] = ()

    def prepare(self, request: SpeechRequest, codes: bytes, reference: bytes | None) -> Prepared:
        if request.id.endswith(tuple(self.missed)) or ("0.0" in self.missed and "/" not in request.id):
            request = structs.replace(request, sampling=structs.replace(request.sampling, min_frames=10_000))
        return super().prepare(request, codes, reference)


def missing(*attempts: str) -> type[MissesEnds]:
    """An engine that misses the ends of attempts, each named `SEGMENT.ATTEMPT`."""
    return type("Misses", (MissesEnds,), {"missed": attempts})


class Speaking:
    """A pipeline and a client of it."""

    def __init__(self, stages: Pipeline, http: httpx.AsyncClient, registry: CollectorRegistry) -> None:
        self.stages, self._http, self._registry = stages, http, registry

    async def say(self, **fields: object) -> httpx.Response:
        body = {"input": TEXT, "voice": "us", "response_format": "pcm", "seed": 7, **fields}
        response = await self._http.post("/v1/audio/speech", json=body)
        assert response.status_code == 200, response.text
        return response

    async def say_batch(self) -> list[dict[str, object]]:
        items = [{"input": TEXT, "seed": 7}, {"input": SENTENCES[0], "seed": 1}]
        return (await self._http.post("/v1/audio/speech/batch", json={"voice": "us", "items": items})).json()["results"]

    def requests(self, outcome: str) -> float:
        return self._registry.get_sample_value("syrinx_requests_total", {"task_type": TASK, "outcome": outcome}) or 0.0

    def faults(self, fault: str) -> float:
        talker = self.stages.workers[-1].metrics.registry
        return talker.get_sample_value("syrinx_segment_faults_total", {"fault": fault}) or 0.0


@contextlib.asynccontextmanager
async def speaking(*missed: str, lead_limit_seconds: float = 8.0, **api: bool) -> AsyncIterator[Speaking]:
    async with (
        pipeline(talkers=0, talker_engine=missing(*missed), reading=READING) as stages,
        gateway_service([stages.connector()], api=ApiConfig(**api)) as (service, registry),
        client_of(service) as http,
    ):
        await stages.talker(lead_limit_seconds=lead_limit_seconds)
        yield Speaking(stages, http, registry)


async def test_a_segment_that_went_wrong_is_made_again_before_it_is_heard() -> None:
    async with speaking("1.0") as speech, speaking() as healthy:
        whole = await speech.say(stream=False)
        assert (whole.headers["X-Finish-Reason"], whole.headers["X-Retries"]) == ("stop", "1")
        assert "X-Incomplete" not in whole.headers and whole.headers["X-Seed"] == "7"
        assert (await speech.say()).content == whole.content, "a stream has the same audio"
        assert (await healthy.say()).content != whole.content
        assert speech.faults("long") == 2
        first, second = await speech.say_batch()
    assert (first["finish_reason"], first["seed"], first["retries"]) == ("stop", 7, 1)
    assert (second["finish_reason"], second["seed"], "retries" in second) == ("stop", 1, False)


async def test_a_segment_that_no_attempt_ends_is_named() -> None:
    place = [len(SENTENCES[0]) + 1, len(SENTENCES[0]) + 1 + len(SENTENCES[1])]
    async with speaking("1.0", "1.1", "1.2") as speech:
        whole = await speech.say(stream=False)
        assert (whole.headers["X-Finish-Reason"], whole.headers["X-Retries"]) == ("incomplete", "2")
        assert whole.headers["X-Incomplete"] == f"{place[0]}-{place[1]}"
        *deltas, done = events((await speech.say(stream_format="sse")).text.encode())
        assert (done["finish_reason"], done["incomplete"]) == ("incomplete", [place])
        assert b"".join(base64.b64decode(each["audio"]) for each in deltas) == whole.content
        await until(lambda: speech.requests("incomplete") == 2, "the requests are counted")
        assert speech.faults("long") == 6


@pytest.mark.virtual
async def test_a_segment_beyond_the_lead_limit_is_checked_to_its_end() -> None:
    """Its frames are no lead of a listener who waits for them: the stream would stand still until it is canceled."""
    async with speaking("1.0", lead_limit_seconds=1.0) as speech:
        await speech.say()
        await until(lambda: speech.requests("stop") == 1, "the request is counted")
    assert speech.faults("long") == 1


async def test_events_tell_the_place_in_the_text() -> None:
    """Of the client, whatever a lexicon makes of it."""
    async with speaking() as speech:
        response = await speech.say(stream_format="sse", lexicon={"teacher": "retired schoolmaster", "opened": "made"})
        *deltas, done = events(response.text.encode())
    places = [tuple(each["text_range"]) for each in deltas]
    assert places == sorted(places)
    assert [TEXT[start:end] for start, end in sorted(set(places))] == SENTENCES
    assert done["finish_reason"] == "stop" and "incomplete" not in done


async def test_the_first_segment_of_a_stream_ends_at_a_frame_that_follows_from_its_frames() -> None:
    async with speaking("0.0") as speech:
        streams = [await speech.say(), *await asyncio.gather(*(speech.say() for _ in range(2)))]
        assert len({each.content for each in streams}) == 1
        whole = await speech.say(stream=False)
        assert (whole.headers["X-Finish-Reason"], whole.headers["X-Retries"]) == ("stop", "1"), "a file is made again"


async def test_another_seed_cannot_help_greedy_decoding() -> None:
    async with speaking("1.0") as speech:
        response = await speech.say(stream=False, temperature=0, subtalker_temperature=0)
    assert (response.headers["X-Finish-Reason"], response.headers["X-Retries"]) == ("incomplete", "0")


@pytest.mark.parametrize(("api", "fields"), [({"runaway_guard": False}, {}), ({}, {"runaway_guard": False})])
async def test_without_checks_only_a_limit_ends_a_segment(api: dict[str, bool], fields: dict) -> None:
    async with speaking("1.0", **api) as speech:
        response = await speech.say(stream=False, max_new_tokens=120, **fields)
        assert (response.headers["X-Finish-Reason"], response.headers["X-Retries"]) == ("length", "0")
        guarded = await speech.say(stream=False, max_new_tokens=400, runaway_guard=True)
        assert guarded.headers["X-Retries"] == "1"


async def test_a_limit_that_comes_first_is_a_length() -> None:
    async with speaking("0.0") as speech:
        response = await speech.say(stream=False, max_new_tokens=10)
    assert (response.headers["X-Finish-Reason"], response.headers["X-Retries"]) == ("length", "0")


def several(name: str, **fields: object) -> SpeechRequest:
    return request(name, TEXT, seed=7, **fields)


async def test_the_audio_does_not_depend_on_the_company() -> None:
    async with pipeline(talker_engine=missing("1.0"), reading=READING) as stages:
        alone = await synthesize(stages.connector(), several("a"))
        items = [*(request(f"n{index}", TEXT, live=index > 0) for index in range(3)), several("b")]
        *_, together = await asyncio.gather(*(synthesize(stages.connector(), item) for item in items))
    assert alone.end is not None and alone.end.reason is EndReason.STOP
    assert (together.pcm, together.end) == (alone.pcm, alone.end)


@pytest.mark.parametrize("frames", [2, 30, 70])
@pytest.mark.parametrize("live", [True, False])
async def test_a_takeover_in_any_segment_changes_nothing(frames: int, live: bool) -> None:
    async with pipeline(talker_engine=missing("1.0"), reading=READING) as stages:
        expected = await synthesize(stages.connector(), several("a", live=live))
        await submit(stages.connector(), several("b", live=live))
        await receive(stages.connector(), "b", until_frames=frames)
        talker, codec = stages.workers
        await stages.kill(talker)
        await stages.talker("talker-1")
        await stages.kill(codec)
        await stages.codec("codec-1")
        received = await receive(stages.connector(), "b")
    assert (received.pcm, received.end) == (expected.pcm, expected.end)
