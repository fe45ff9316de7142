"""A step of the codec's training that is replayed is the step as it is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from support import training as small
from training import codec as codecs
from training.codec_loss import Loss, PolishLoss
from training.config import SMOKE
from training.crops import Audio
from training.replay import Replayed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CONFIG, CUDA = SMOKE.codec, torch.device("cuda")
STEPS = 40


def audio() -> Audio:
    said = [small.tones(text, number) for number, text in enumerate(["some tones", "other ones", "more", "and more"])]
    begins = np.cumsum([0, *map(len, said[:-1])])
    return Audio(torch.from_numpy(np.concatenate(said)).cuda(), torch.from_numpy(begins).cuda())


def steps(
    *, replayed: bool, polish: bool, compiled: bool
) -> tuple[list[list[float]], list[list[Tensor]], codecs.Codec]:
    """Results and gradients of each step; codebooks move, weights do not."""
    made, heard = codecs.build(CONFIG, CUDA), audio()
    loss: Loss | PolishLoss
    if polish:
        codes = codecs.encode(made, heard.samples, heard.frames())
        loss = PolishLoss(CONFIG, made, heard, codes, compiled=compiled)
    else:
        loss = Loss(CONFIG, made, heard, compiled=compiled)
    weights = [weight for module in made for weight in module.parameters() if weight.requires_grad]
    step = Replayed(loss.parts, weights, CUDA)
    results, gradients = [], []
    for number in range(STEPS):
        kind, *inputs = loss.inputs(number)
        found = step(kind, *inputs) if replayed else step._run(kind, tuple(inputs))
        results.append([float(each) for each in found])
        gradients.append([weight.grad.clone() for weight in weights if weight.grad is not None])
    assert bool(step._recordings) is replayed
    return results, gradients, made


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("polish", [False, True])
def test_a_replayed_step_is_the_step(polish: bool, compiled: bool) -> None:
    torch.manual_seed(0)
    one = steps(replayed=False, polish=polish, compiled=compiled)
    other = steps(replayed=True, polish=polish, compiled=compiled)
    assert [len(each) for each in one[1]] == [len(each) for each in other[1]]
    for number, (wanted, found) in enumerate(zip(one[0], other[0], strict=True)):
        assert found == pytest.approx(wanted, rel=0.02), number
    assert len({tuple(each) for each in other[0]}) == STEPS
    for number, (wanted_all, found_all) in enumerate(zip(one[1], other[1], strict=True)):
        wanted, found = (torch.cat([each.flatten() for each in some]) for some in (wanted_all, found_all))
        assert torch.nn.functional.cosine_similarity(wanted, found, 0) > 0.98, number
    for wanted, found in zip(one[2].decoder.parameters(), other[2].decoder.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0.05, atol=0.02)
