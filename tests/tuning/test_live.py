"""`syrinx up` in mode Auto with the bundled voice under open-loop load: latency improves, and the audio stays the same.

Objectives and load are derived from the untuned performance, so that the tests do not depend on the machine.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, NamedTuple

import msgspec
import pytest

from support.tuned import VOICE, Up, load, pcm
from syrinx_operator.commands.bench.load import Limit, Script, closed_loop, corpus, make_sender, open_loop, poisson
from syrinx_operator.commands.bench.stats import summarize
from syrinx_operator.commands.client import SpeechClient
from syrinx_operator.resource.fields.gateway import GatewaySpec
from syrinx_operator.resource.fields.tuning import SloSpec, TtfaObjective, TuningSpec
from syrinx_operator.resource.knobs import setting_of
from syrinx_operator.resource.resolve import resolve
from syrinx_operator.resource.spec import CodecSpec, PipelineSpec, TalkerSpec, TTSPipeline, default_pipeline
from syrinx_stages.contract.metrics import TTFA_BUCKETS

pytestmark = [pytest.mark.tuning, pytest.mark.asyncio(loop_scope="module")]

SENTENCES = (
    "The farmer found two heavy bags.",
    "The old teacher carried seven green apples before breakfast.",
    "Our captain described a silver watch at the station.",
)
BAD_RAMP = (64,)
"""One chunk per sentence: bad on every machine, at any load."""
SHARE_OF_CAPACITY = 0.5
FIND_SECONDS = 600.0


class Untuned(NamedTuple):
    """Performance of the machine with the default of eight rows per step."""

    rate: float
    """Sustainable requests per second."""
    p50: float
    p95: float
    audio: dict[int, bytes]
    """By seed."""


def a_pipeline(name: str, ttfa_ms: int | None, **codec: Any) -> TTSPipeline:
    objectives = () if ttfa_ms is None else (TtfaObjective(task_type="CustomVoice", ttfa_p95_ms=ttfa_ms),)
    spec = PipelineSpec(
        gateway=GatewaySpec(port=0),
        talker=TalkerSpec(max_num_seqs=8),
        codec=CodecSpec(max_num_seqs=8, **codec),
        slo=SloSpec(ttfa=objectives, underrun_ratio=1.0),
        tuning=TuningSpec(mode="Off" if ttfa_ms is None else "Auto", interval_seconds=5),
    )
    return msgspec.structs.replace(default_pipeline(name), spec=spec)


@pytest.fixture(scope="module")
def untuned(tmp_path_factory: pytest.TempPathFactory) -> Untuned:
    async def measure(url: str) -> Untuned:
        audio = {seed: await pcm(url, text, seed) for seed, text in enumerate(SENTENCES)}
        async with SpeechClient(url) as client:
            speak = make_sender(client, Script(corpus(), (VOICE,), 1))
            outcomes, wall = await closed_loop(speak, 8, Limit(seconds=20))
            rate = SHARE_OF_CAPACITY * summarize("closed", 8, outcomes, wall).requests_per_second
            outcomes, wall = await open_loop(speak, poisson(rate, 1, Limit(seconds=30)))
            ttfa = summarize("open", rate, outcomes, wall).ttfa
        return Untuned(rate, ttfa.p50, ttfa.p95, audio)

    with Up(tmp_path_factory.mktemp("untuned"), a_pipeline("untuned", None)) as up:
        found = asyncio.run(measure(up.url))
    print(f"untuned: {found.rate:.2f} requests a second, TTFA {found.p50:.3f}/{found.p95:.3f} s")
    return found


def edge_from(seconds: float) -> int:
    """Returns the next histogram bucket bound in milliseconds, as an objective."""
    return round(1000 * next(edge for edge in TTFA_BUCKETS if edge >= min(seconds, TTFA_BUCKETS[-1])))


def is_met(up: Up) -> bool:
    memory = up.memory
    return memory is not None and any(each.met == "True" and (each.requests or 0) >= 20 for each in memory.slo)


async def test_a_bad_start_reaches_the_objective_with_unchanged_audio(tmp_path, untuned):
    samples: list[tuple[bool, bool]] = []

    async def listen(up: Up) -> None:
        while True:
            for seed, text in enumerate(SENTENCES):
                in_trial = up.state.trial is not None or up.state.soak is not None
                audio = await pcm(up.url, text, seed)
                if audio is None:  # Refused.
                    await asyncio.sleep(0.5)
                else:
                    samples.append((in_trial, audio == untuned.audio[seed]))

    pipeline, begin = a_pipeline("found", edge_from(1.5 * untuned.p95), chunk_ramp=BAD_RAMP), time.monotonic()
    with Up(tmp_path, pipeline) as up:
        async with load(up.url, untuned.rate, 2):
            listening = asyncio.create_task(listen(up))
            await up.until(lambda state: state.chosen and is_met(up), "the objective is met", FIND_SECONDS)
            print(f"the objective is met after {time.monotonic() - begin:.0f} s")
            state = await up.until(lambda state: state.history, "the change has passed its watch", FIND_SECONDS)
            listening.cancel()
    print(f"after {time.monotonic() - begin:.0f} s: {state.history[-1]}; {len(samples)} samples of audio")
    assert state.chosen != setting_of(resolve(pipeline))
    assert [record.verdict for record in state.history] == ["Promoted"]
    assert all(same for _, same in samples)
    assert sum(in_trial for in_trial, _ in samples) >= 3, "some samples are from trials and of new settings"
