"""A request whose scores are not finite ends with an error at once; the others of its batch do not change."""

import support.interpreter  # noqa: F401, I001 (before any kernel)

from pathlib import Path

import pytest
import torch
from support import small_talker
from torch import Tensor

from syrinx_stages.contract.messages import End, EndReason, Sampling
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.talker.cuda.engine import CudaTalkerEngine
from syrinx_stages.talker.eager_engine import EagerTalkerEngine

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

NOT_FINITE = End(EndReason.ERROR, "the talker computed scores that are not finite numbers")
SAMPLINGS = {
    "greedy": Sampling(temperature=0, residual_temperature=0, min_frames=99),
    "sampled": Sampling(top_k=20, residual_top_k=20, residual_top_p=0.9, min_frames=99),
}

Engine = EagerTalkerEngine | CudaTalkerEngine


def eager_engine(voice: Checkpoint) -> EagerTalkerEngine:
    return EagerTalkerEngine(voice)


def cuda_engine(voice: Checkpoint) -> CudaTalkerEngine:
    engine = CudaTalkerEngine(voice, 3)
    engine.runner.batch_sizes = [3]
    engine.warm_up()
    return engine


def hidden_of(engine: Engine, name: str) -> Tensor:
    """Returns the state that a request's next frame is sampled from."""
    if isinstance(engine, EagerTalkerEngine):
        return engine._rows[name].hidden
    return engine.runner.state.hidden[engine._rows[name].allocation.slot]


def steps(engine: Engine, names: list[str], count: int) -> list[dict[str, bytes | End]]:
    return [dict(engine.read(engine.launch(names))) for _ in range(count)]


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        (eager_engine, "greedy", torch.nan),
        (eager_engine, "sampled", torch.inf),
        (cuda_engine, "sampled", torch.inf),
    ],
)
@torch.inference_mode()
def test_only_the_damaged_request_ends(make, name: str, value: float, voice: Checkpoint) -> None:
    requests = [small_talker.request(each, sampling=SAMPLINGS[name]) for each in ("a", "bad", "b")]
    names = [request.id for request in requests]
    engine, whole = make(voice), eager_engine(voice)
    for each in (engine, whole):
        for request in requests:
            each.admit([each.prepare(request, b"", None)])
    [expected] = steps(whole, names, 1)
    hidden_of(engine, "bad")[::2] = value
    assert steps(engine, names, 1) == [expected | {"bad": NOT_FINITE}]


@pytest.mark.parametrize("make", [eager_engine, cuda_engine])
def test_frame_with_a_residual_code_without_finite_scores_ends_the_request(make, tmp_path: Path) -> None:
    """One weight of the last head is NaN, so only that code cannot be sampled."""
    voice = Checkpoint(str(small_talker.write(tmp_path / "voice")))
    real = voice.load_talker

    def load_talker(*skip: str):
        talker = real(*skip)
        with torch.no_grad():
            talker.code_predictor.lm_head[14].weight[3, 5] = torch.nan
        return talker

    voice.load_talker = load_talker
    engine = make(voice)
    engine.admit([engine.prepare(small_talker.request("a", sampling=SAMPLINGS["sampled"]), b"", None)])
    assert steps(engine, ["a"], 1) == [{"a": NOT_FINITE}]
