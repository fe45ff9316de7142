"""`POST /v1/audio/speech/batch` through a real HTTP server, with scripted stages."""

import asyncio
import base64
import json
from typing import Any

import httpx
import pytest

from support.gateway import Gateway, Script, base_checkpoint, gateway, pcm_of, tone
from support.waiting import DEADLINE, until
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import End, EndReason
from syrinx_stages.contract.settings import GatewaySettings
from syrinx_stages.gateway.http.batch import CONCURRENT, MAX_BATCH_TEXT, MAX_ITEMS, MAX_REFERENCES
from syrinx_stages.runtime.settings import SettingsUpdate

pytestmark = pytest.mark.virtual

PATH = "/v1/audio/speech/batch"


async def batch(running: Gateway, *items: dict[str, Any], **shared: object) -> httpx.Response:
    return await running.http.post(PATH, json={"items": list(items), **shared})


async def test_each_item_is_a_file_with_its_own_fields_over_those_of_the_batch(running: Gateway):
    response = await batch(
        running,
        {"input": "One."},
        {"input": "Two.", "voice": "gb", "response_format": "wav", "seed": 2, "speed": None},
        {"input": "Three.", "response_format": "ulaw"},
        model="tts-1",
        voice="us_f",
        response_format="pcm",
        seed=1,
        speed=2,
        stream=False,
    )
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    answer = response.json()
    assert answer["id"] == f"speech-batch-{response.headers['x-request-id']}"
    assert (answer["total"], answer["succeeded"], answer["failed"]) == (3, 3, 0)
    assert [result["index"] for result in answer["results"]] == [0, 1, 2]
    first, second, third = answer["results"]
    audio = base64.b64decode(first.pop("audio_data"))
    assert len(audio) == len(tone(5))
    usage = first.pop("usage")
    assert usage["output_tokens"] == 10 and usage["total_tokens"] == usage["input_tokens"] + 10
    assert first == {
        "index": 0,
        "status": "success",
        "media_type": "audio/pcm",
        "sample_rate": 24_000,
        "audio_seconds": 0.4,
        "seed": 1,
        "finish_reason": "stop",
    }
    assert pcm_of(base64.b64decode(second["audio_data"])) == audio
    assert (second["media_type"], second["seed"]) == ("audio/wav", 2)
    assert (third["media_type"], third["sample_rate"]) == ("audio/PCMU", 8_000)
    seen = sorted(running.stages.seen, key=lambda request: request.id)
    assert [(request.text, request.voice, request.live) for request in seen] == [
        ("One.", "us_f", False),
        ("Two.", "gb", False),
        ("Three.", "us_f", False),
    ]
    assert running.requests("stop") == 3


async def test_an_item_fails_alone(running: Gateway):
    response = await batch(
        running, {"input": "a", "voice": "alto"}, {"input": " "}, {"input": "b", "instructions": "Whisper."}
    )
    answer = response.json()
    assert (response.status_code, answer["succeeded"], answer["failed"]) == (200, 1, 2)
    voice, empty, spoken = answer["results"]
    assert voice["error"].startswith("voice: 'alto' is unknown; accepted: us, ")
    assert (voice["status"], voice["param"], voice["code"]) == ("error", "voice", "invalid_value")
    assert empty["error"] == "input: is empty; send the text"
    assert spoken["status"] == "success"
    assert spoken["warnings"][0].startswith("instructions are ignored: ")
    assert (running.requests("stop"), running.requests("refused", "unknown")) == (1, 2)


async def test_an_error_names_a_field_of_another_api_as_it_was_sent(running: Gateway):
    items = [{"input": "a"}, {"input": "b", "voice_id": "bass"}, {"text": " "}]
    results = (await batch(running, *items, speaker="alto")).json()["results"]
    assert [each["param"] for each in results] == ["speaker", "voice_id", "text"]
    assert results[0]["error"].startswith("speaker: stands for voice: 'alto' is unknown; accepted: us, ")
    refused = await batch(running, {"input": "a"}, model_id="other")
    assert (refused.status_code, refused.json()["error"]["param"]) == (404, "model_id")


async def test_an_item_whose_stage_fails_is_an_error_of_the_item(running: Gateway):
    running.stages.script = Script(frames=4, end=End(EndReason.ERROR, "gave up", retry_after=4.2))
    [result] = (await batch(running, {"input": "a"})).json()["results"]
    assert result == {"index": 0, "status": "error", "error": "gave up", "code": "stage_failed", "retry_after": 4.2}
    assert running.requests("error") == 1


async def test_an_item_that_is_not_admitted_is_tried_again():
    async with gateway(gateway=GatewaySettings(max_queue=0)) as running:
        call = asyncio.create_task(batch(running, {"input": "a"}))
        await until(lambda: running.requests("refused"), "it was refused")
        running.service.live.apply(SettingsUpdate({"max_queue": 10}))
        assert (await call).json()["succeeded"] == 1


async def test_an_item_that_is_not_admitted_in_time_is_an_error_of_the_item():
    async with gateway(gateway=GatewaySettings(max_queue=0)) as running:
        [result] = (await batch(running, {"input": "a"})).json()["results"]
        assert (result["code"], result["retry_after"] > 0) == ("queue_full", True)
        assert running.requests("refused") > 1
        again = await batch(running, {"input": "a"})
        assert (again.status_code, again.json()["error"]["code"]) == (503, "queue_full"), "at once"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "items"),
        ({"items": []}, "items"),
        ({"items": [{"input": "a"}] * (MAX_ITEMS + 1)}, "items"),
        ({"items": [{"input": "a" * 4096}] * (MAX_BATCH_TEXT // 4096 + 1)}, "items"),
        ({"items": [{"input": "a", "ref_audio": str(n)} for n in range(MAX_REFERENCES + 1)]}, "items"),
        ({"items": [{"input": "a"}, {"voice": "us"}]}, "items[1].input"),
        ({"items": [{"input": "a", "speeed": 1}]}, "items[0].speeed"),
        ({"items": [{"input": "a", "speed": 9}]}, "items[0].speed"),
        ({"items": [{"input": "a", "stream": True}]}, "items[0].stream"),
        ({"items": ["a"]}, "items[0]"),
        ({"items": [{"input": "a"}], "speeed": 1}, "speeed"),
        ({"items": [{"input": "a"}], "input": "b"}, "input"),
        ({"items": [{"input": "a"}], "text": "b"}, "text"),
        ({"items": [{"input": "a"}], "stream_format": "sse"}, "stream_format"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_batch_of_the_wrong_shape_is_refused_as_a_whole(running: Gateway, body: dict[str, Any], param: str):
    response = await running.http.post(PATH, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert response.json()["error"]["message"].startswith(param.partition(".")[0]) or param == "speeed"
    assert not running.stages.seen
    assert running.requests("refused", "unknown") == 1


@pytest.mark.parametrize("count", [0, MAX_ITEMS + 1])
async def test_another_number_of_items_is_answered_with_the_right_one(running: Gateway, count: int):
    response = await running.http.post(PATH, json={"items": [{"input": "a"}] * count})
    assert response.json()["error"]["message"] == f"items: has {count} items; send 1 to {MAX_ITEMS}"


async def test_a_few_items_are_served_at_the_same_time_and_results_are_sent_in_order(running: Gateway):
    running.stages.script = script = Script(pause_after=0)
    items = [{"input": f"Number {number}."} for number in range(CONCURRENT + 4)]
    call = asyncio.create_task(batch(running, *items))
    await until(lambda: len(running.stages.seen) == CONCURRENT, "the first items were claimed")
    await asyncio.sleep(0.1)
    assert len(running.stages.seen) == CONCURRENT, "the others wait"
    script.go.set()
    answer = (await call).json()
    assert answer["succeeded"] == len(items)
    assert [result["index"] for result in answer["results"]] == list(range(len(items)))


async def test_a_result_is_sent_before_the_next_one_is_complete(running: Gateway):
    running.stages.script = Script()
    waiting = Script(pause_after=0)
    body = {"items": [{"input": "a"}] * (CONCURRENT + 1), "response_format": "pcm"}
    async with running.http.stream("POST", PATH, json=body) as response:
        pieces, received = response.aiter_raw(), b""
        while b'"index":0' not in received:
            received += await asyncio.wait_for(anext(pieces), DEADLINE)
            running.stages.script = waiting
        waiting.go.set()
        received += b"".join([piece async for piece in pieces])
    assert json.loads(received)["succeeded"] == CONCURRENT + 1


async def test_a_batch_that_a_drain_cuts_off_is_a_503_or_incomplete(running: Gateway):
    running.stages.script = Script(pause_after=4)
    whole = asyncio.create_task(batch(running, {"input": "a"}))
    partial = asyncio.create_task(batch(running, {"input": "a", "voice": "alto"}, {"input": "b"}))
    await until(lambda: len(running.stages.seen) == 2, "both are served")
    await running.service.drain(0.2)
    assert (await whole).json()["error"]["code"] == "draining"
    with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
        await partial
    assert running.requests("error") == 2


async def test_a_shared_reference_is_decoded_once(tmp_path, monkeypatch: pytest.MonkeyPatch):
    async with gateway(model=base_checkpoint(tmp_path / "base")) as running:
        decoded = []

        async def decode(ref_audio: str) -> bytes:
            decoded.append(ref_audio)
            return bytes(4 * FAMILY.sample_rate)

        monkeypatch.setattr(running.service, "decode_reference", decode)
        items = [{"input": "a"}, {"input": "b"}, {"input": "c", "ref_audio": "other"}]
        answer = (await batch(running, *items, ref_audio="shared", x_vector_only_mode=True)).json()
        assert answer["succeeded"] == 3
        assert decoded == ["shared", "other"]
        assert running.stages.references == [bytes(4 * FAMILY.sample_rate)] * 3
