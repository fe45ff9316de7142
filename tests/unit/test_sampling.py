"""Sampling: equal to transformers' processors for each row, with random numbers of (seed, frame, group) alone."""

import msgspec
import numpy as np
import pytest
import torch

from support import talker_recipe as recipe
from syrinx_stages.contract.messages import Sampling
from syrinx_stages.model.config import TalkerConfig
from syrinx_stages.model.sampling import INVALID_CODE, LogitFilter, Sampler, uniforms

CPU = torch.device("cpu")
CONFIG = msgspec.convert(recipe.config("custom_voice", "1b7")["talker_config"], TalkerConfig)
EOS = CONFIG.codec_eos_token_id


def seen(frames: int) -> torch.Tensor:
    mask = torch.zeros(CONFIG.vocab_size, dtype=torch.bool)
    mask[recipe.SAID[:frames]] = True
    return mask


def logits(frames: int) -> torch.Tensor:
    return torch.from_numpy(recipe.scores(frames))


def test_scores_equal_those_of_transformers() -> None:
    """All recorded parameters in one batch, against records of single rows."""
    with np.load(recipe.RECORDS) as file:
        records = {name: file[name] for name in file.files if name.startswith("scores/")}
    cases = [(name, frames) for name in recipe.SAMPLING for frames in (1, 4)]
    rows = [Sampling(**recipe.SAMPLING[name]) for name, _ in cases]
    sampler = Sampler(rows, [0] * len(rows), CONFIG, CPU)
    counts = [frames for _, frames in cases]
    values, said = torch.stack([*map(logits, counts)]), torch.stack([*map(seen, counts)])
    scores = sampler.code0_scores(values, said, torch.tensor(counts))
    for row, (name, frames) in zip(sampler.code0_filter.filter(scores), cases, strict=True):
        expected = torch.from_numpy(records[f"scores/{name}/{frames}"])
        assert torch.equal(row.isneginf(), expected.isneginf()), (name, frames)
        assert torch.allclose(row, expected, rtol=1e-6), (name, frames)


def test_only_codes_and_eos_are_sampled() -> None:
    rows = 64
    sampler = Sampler([Sampling(temperature=50.0, top_k=0)] * rows, range(rows), CONFIG, CPU)
    codes = sampler.step(torch.full((rows,), 5)).code0(logits(4).expand(rows, -1), seen(4).expand(rows, -1))
    assert all(code < recipe.CODES or code == EOS for code in codes.tolist())
    assert len(set(codes.tolist())) > 20


def test_eos_is_suppressed_before_min_frames() -> None:
    wants_to_end = torch.zeros(5, CONFIG.vocab_size)
    wants_to_end[:, EOS] = 100
    sampler = Sampler([Sampling(min_frames=3)] * 5, range(5), CONFIG, CPU)
    seen_codes = torch.zeros_like(wants_to_end, dtype=torch.bool)
    codes = sampler.step(torch.arange(5)).code0(wants_to_end, seen_codes)
    assert [code == EOS for code in codes.tolist()] == [False, False, False, True, True]


@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1e-45, 1e-38, 1e-31, 1e-29, 1e-6])
def test_tiny_temperature_is_greedy(temperature: float) -> None:
    """NaN probabilities would give an id without an embedding, which on a GPU ends the process."""
    scores = torch.tensor([[-300.0, 41.5, 300.0, -torch.inf], [7.0, -7.0, 0.0, 6.5], [1.0, 1.04, 1.02, 1.05]])
    numbers = torch.tensor([[0.999], [0.5], [0.001]], dtype=torch.float64)
    for top_k, top_p in [(0, 1.0), (3, 1.0), (0, 0.5)]:
        assert LogitFilter([(temperature, top_k, top_p)] * 3, CPU).sample(scores, numbers).tolist() == [2, 0, 3]


def test_temperature_zero_is_greedy_for_its_row() -> None:
    rows = [Sampling(temperature=0, residual_temperature=0), Sampling(temperature=30.0, residual_temperature=30.0)] * 40
    sampler = Sampler(rows, range(80), CONFIG, CPU)
    draw = sampler.step(torch.full((80,), 9))
    values = logits(4).expand(80, -1)
    codes = draw.code0(values, torch.zeros(80, CONFIG.vocab_size, dtype=torch.bool))
    assert set(codes[::2].tolist()) == {int(values[0, : recipe.CODES].argmax())}
    assert len(set(codes[1::2].tolist())) > 5
    residual = draw.residual(values[:, : recipe.CODES], 3)
    assert set(residual[::2].tolist()) == {int(values[0, : recipe.CODES].argmax())}
    assert len(set(residual[1::2].tolist())) > 5


@pytest.mark.parametrize("others_count", [1, 2, 7, 40])
def test_row_is_independent_of_the_other_rows(others_count: int) -> None:
    params = [Sampling(**values) for values in recipe.SAMPLING.values()]
    params += [Sampling(temperature=0), Sampling(top_k=300, top_p=0.8), Sampling(min_frames=30)]
    own = Sampling(top_k=20, top_p=0.95, residual_top_p=0.9)
    generator = torch.Generator().manual_seed(others_count)
    others = [params[i % len(params)] for i in range(others_count)]
    values = torch.randn(others_count + 1, CONFIG.vocab_size, generator=generator)
    seen_codes = torch.rand(values.shape, generator=generator) < 0.1
    frames = torch.randint(0, 2000, (others_count + 1,), generator=generator)
    for index in {0, others_count // 2, others_count}:
        rows = [*others[:index], own, *others[index:]]
        together = Sampler(rows, range(others_count + 1), CONFIG, CPU)
        alone = Sampler([own], [index], CONFIG, CPU)
        pick = slice(index, index + 1)
        scores = together.code0_scores(values, seen_codes, frames)
        assert torch.equal(scores[pick], alone.code0_scores(values[pick], seen_codes[pick], frames[pick]))
        assert torch.equal(together.code0_filter.filter(scores)[pick], alone.code0_filter.filter(scores[pick]))
        joint, single = together.step(frames), alone.step(frames[pick])
        assert torch.equal(joint.code0(values, seen_codes)[pick], single.code0(values[pick], seen_codes[pick]))
        residual = values[:, : recipe.CODES]
        for group in (1, 15):
            assert torch.equal(joint.residual(residual, group)[pick], single.residual(residual[pick], group))


def test_samples_follow_the_distribution() -> None:
    """Chi-square test against the softmax over the remaining codes, with fixed seeds."""
    scores = torch.tensor([[2.0, 1.0, 0.0, -1.0, 3.0, -torch.inf]])
    single_filter = LogitFilter([(1.5, 4, 1.0)], CPU)
    expected = (scores / 1.5).masked_fill(scores < 0, -torch.inf).softmax(-1)[0]
    count = 20_000
    numbers = uniforms(torch.full((count,), 7), torch.arange(count))[:, 3:4]
    batch = LogitFilter([(1.5, 4, 1.0)] * count, CPU).sample(scores.expand(count, -1), numbers)
    found = batch.bincount(minlength=6)
    remaining = expected > 0
    assert not found[~remaining].any()
    assert chi_square(found[remaining], expected[remaining] * count) < 16.3  # 3 degrees of freedom, p = 0.001
    assert torch.equal(single_filter.sample(scores, numbers[:1]), batch[:1])


@pytest.mark.parametrize(("number", "code"), [(0.0, 1), (0.4999, 1), (0.5, 3), (1 - 2.0**-32, 3)])
def test_codes_of_probability_zero_are_not_sampled(number: float, code: int) -> None:
    scores = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]])
    sampled = LogitFilter([(1.0, 0, 1.0)], CPU).sample(scores, torch.tensor([[number]], dtype=torch.float64))
    assert sampled.tolist() == [code]


def chi_square(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float(((found - expected) ** 2 / expected).sum())


def test_numbers_equal_the_reference() -> None:
    """A resumed request depends on equal numbers on every device and in every version.

    SplitMix64's are uniform and independent.
    """
    numbers = uniforms(torch.tensor([0, 12345, -1]), torch.tensor([0, 7, 2047]))
    first = [round(value * 2**32) for value in numbers[:, [0, 15]].flatten().tolist()]
    drawn = ((0, 0), (12345, 7), (-1, 2047))
    assert first == [reference(seed, frame, group) for seed, frame in drawn for group in (0, 15)]


def reference(seed: int, frame: int, group: int) -> int:
    """The definition in Python integers: the upper 32 bits of three rounds of SplitMix64."""
    gamma, mask = 0x9E3779B97F4A7C15, (1 << 64) - 1

    def mix(x: int) -> int:
        x &= mask
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & mask
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB & mask
        return x ^ (x >> 31)

    return mix(mix(mix(seed + gamma) + (frame + 1) * gamma) + (group + 1) * gamma) >> 32


@pytest.mark.parametrize("bad", [torch.nan, -torch.nan, torch.inf], ids=["NaN", "negative NaN", "infinity"])
@pytest.mark.parametrize("index", [0, 2, 4])
def test_row_with_a_score_that_is_not_finite_gets_no_code(bad: float, index: int) -> None:
    scores = torch.tensor([[5.0, -torch.inf, 0.5, 3.0, 1.0]] * 3)
    damaged = scores.clone()
    damaged[1, index] = bad
    numbers = torch.tensor([[0.3], [0.3], [0.9]], dtype=torch.float64)
    mixed = [(0.0, 0, 1.0), (0.0, 0, 1.0), (1.0, 2, 1.0)]
    for params in ([(0.0, 0, 1.0)] * 3, mixed, *([each] * 3 for each in [(1.0, 0, 1.0), (0.5, 2, 1.0), (1.0, 0, 0.6)])):
        choice = LogitFilter(params, CPU)
        first, _, last = choice.sample(scores, numbers).tolist()
        assert choice.sample(damaged, numbers).tolist() == [first, INVALID_CODE, last], params
        damaged_row = scores.clone()
        damaged_row[1] = -torch.inf
        assert choice.sample(damaged_row, numbers).tolist() == [first, INVALID_CODE, last], "without any score"
