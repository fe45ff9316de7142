"""The whole pipeline with the talker on vLLM, as processes."""

import pytest
from msgspec import structs

from support.intelligibility import SENTENCES, recognizer, speak_all
from support.local_pipeline import local_pipeline
from syrinx_operator.resource.spec import TTSPipeline, default_pipeline

pytestmark = pytest.mark.vllm


def pipeline(engine: str) -> TTSPipeline:
    default = default_pipeline()
    talker = structs.replace(default.spec.talker, engine=engine)
    return structs.replace(default, spec=structs.replace(default.spec, talker=talker))


async def test_bundled_voice_is_as_intelligible_as_on_the_torch_engine() -> None:
    scores, audio = {}, {}
    for engine in ("torch", "vllm"):
        async with local_pipeline(pipeline(engine)) as running:
            audio[engine] = await speak_all(running.gateway_url, concurrency=8)
        scores[engine] = recognizer().score(audio[engine])[0]
    print(f"\nsentences identified: {scores}")
    assert scores["vllm"] >= 0.9 and abs(scores["vllm"] - scores["torch"]) <= 0.04
    # Rounding changes about one sampled code of sixteen thousand, so nearly all sentences have identical samples.
    same = sum(ours == theirs for ours, theirs in zip(audio["vllm"], audio["torch"], strict=True))
    assert same >= 0.8 * len(SENTENCES)
