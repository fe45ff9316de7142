"""The whole pipeline with the talker on vLLM, as processes."""

import pytest
from msgspec import structs

from support.intelligibility import SENTENCES, recognizer, speak_all
from syrinx_operator.local.pipeline import LocalPipeline
from syrinx_operator.resource.spec import TTSPipeline, default_pipeline

pytestmark = pytest.mark.vllm


def pipeline(engine: str) -> TTSPipeline:
    usual = default_pipeline()
    talker = structs.replace(usual.spec.talker, engine=engine)
    return structs.replace(usual, spec=structs.replace(usual.spec, talker=talker))


async def test_the_bundled_voice_is_understood_as_well_as_by_the_torch_engine() -> None:
    scores, audio = {}, {}
    for engine in ("torch", "vllm"):
        async with LocalPipeline(pipeline(engine), port=0) as running:
            audio[engine] = await speak_all(running.gateway_url, concurrency=8)
        scores[engine] = recognizer().score(audio[engine])[0]
    print(f"\nsentences identified: {scores}")
    assert scores["vllm"] >= 0.9 and abs(scores["vllm"] - scores["torch"]) <= 0.04
    # Rounding tells a draw of sixteen thousand apart: nearly all sentences are the same to the sample.
    same = sum(ours == theirs for ours, theirs in zip(audio["vllm"], audio["torch"], strict=True))
    assert same >= 0.8 * len(SENTENCES)
