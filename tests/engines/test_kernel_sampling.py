"""The sampling kernels in Triton's interpreter, compared with `model.sampling` for the same random numbers."""

import support.interpreter  # noqa: F401, I001 (before any kernel)

import msgspec
import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from support import small_talker
from torch import Tensor

from syrinx_stages.contract.messages import Sampling
from syrinx_stages.kernels import sampling
from syrinx_stages.kernels.metadata import FRAME, RING, SLOT, TEXT
from syrinx_stages.kernels.sampling import SamplingInputs
from syrinx_stages.model.config import CODE_GROUPS, ModelConfig
from syrinx_stages.model.sampling import Sampler, uniforms
from syrinx_stages.talker.cuda.frame import sampling_params

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

CPU = torch.device("cpu")
CONFIG = msgspec.convert(small_talker.settings(), ModelConfig).talker_config
EOS, VOCABULARY, CODES = CONFIG.codec_eos_token_id, CONFIG.vocab_size, CONFIG.codebook_size
WIDTH = 48
SEEDS = (0, 1, -1, 5, -(1 << 63), (1 << 63) - 1, 123456789, 42)

SAMPLINGS = [
    Sampling(),
    Sampling(temperature=0.0, residual_temperature=0.0),
    Sampling(temperature=1e-31, residual_temperature=1e-31),
    Sampling(temperature=0.05, residual_temperature=0.05),
    Sampling(temperature=2.0, top_k=0, residual_temperature=2.0, residual_top_k=0),
    Sampling(top_k=1, residual_top_k=1),
    Sampling(top_k=7, residual_top_k=3),
    Sampling(top_k=100_000, residual_top_k=100_000),
    *[Sampling(top_k=0, top_p=p, residual_top_k=0, residual_top_p=p) for p in (1e-9, 0.1, 0.5, 0.9, 0.999)],
    Sampling(temperature=1.3, top_k=20, top_p=0.8, residual_top_k=20, residual_top_p=0.7),
    Sampling(repetition_penalty=5.0),
    Sampling(repetition_penalty=0.5),
    Sampling(min_frames=0),
    Sampling(min_frames=6),
]
FRAMES = 5


class SamplingCase:
    """Rows in every second slot; the slots between them are NaN."""

    def __init__(self, samplings: list[Sampling], seeds: list[int]) -> None:
        self.samplings, self.seeds = samplings, seeds
        self.count = len(samplings)
        slots = 2 * self.count + 1
        random = torch.Generator().manual_seed(0)
        self.slots = 1 + 2 * torch.randperm(self.count, generator=random)
        self.rows = SamplingInputs(
            metadata=torch.full((self.count, 9), -1, dtype=torch.int32),
            params=torch.full((slots, 2, sampling.NUM_SAMPLING_PARAMS), torch.nan),
            seeds=torch.full((slots,), 77, dtype=torch.int64),
            seen=torch.ones(slots, VOCABULARY, dtype=torch.int8),
        )
        self.rows.metadata[:, SLOT.value], self.rows.metadata[:, FRAME.value] = self.slots, FRAMES
        self.rows.params[self.slots] = torch.tensor([sampling_params(item) for item in samplings])
        self.rows.seeds[self.slots] = torch.tensor(seeds)
        self.seen = torch.rand(self.count, VOCABULARY, generator=random) < 0.2
        self.rows.seen[self.slots] = self.seen.to(torch.int8)
        self.codes = torch.full((self.count, CODE_GROUPS), -1, dtype=torch.int32)
        self.model = Sampler(samplings, seeds, CONFIG, CPU).step(torch.full((self.count,), FRAMES))


def all_combinations() -> SamplingCase:
    """Returns every sampling with several seeds."""
    pairs = [(item, seed) for item in SAMPLINGS for seed in SEEDS[:6]]
    return SamplingCase([item for item, _ in pairs], [seed for _, seed in pairs])


def scores(case: SamplingCase, vocabulary: int, seed: int) -> Tensor:
    """Returns random scores with ties, except for top-p, where the model keeps only some of equal scores."""
    values = 3 * torch.randn(case.count, vocabulary, generator=torch.Generator().manual_seed(seed))
    with_ties = torch.tensor([item.top_p == item.residual_top_p == 1 for item in case.samplings])
    values[with_ties, 5] = values[with_ties, :CODES].max(1).values
    values[with_ties, 9] = values[with_ties, 11]
    return values


def sample_code0(case: SamplingCase, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Samples code 0. Returns the predictor's inputs and their sums of sum_of_squares."""
    state = torch.randn(case.count, WIDTH, generator=torch.Generator().manual_seed(3))
    x, sum_of_squares = torch.full((2 * case.count, WIDTH), torch.nan), torch.full((2 * case.count, 3), torch.nan)
    bias, table = torch.arange(WIDTH) / WIDTH, embeddings(VOCABULARY)
    sampling.sample_first_code(
        case.rows, torch.cat((logits, state), 1), bias, table, case.codes, x, sum_of_squares,
        eos=EOS, num_special=VOCABULARY - CODES,
    )  # fmt: skip
    torch.testing.assert_close(x[: case.count], state + bias)
    # A row without a code continues with code 0, whose frame is discarded.
    assert torch.equal(x[case.count :], table[case.codes[:, 0].long().clamp(min=0)])
    return x, sum_of_squares


def embeddings(count: int) -> Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(4))


NOT_FINITE = [torch.nan, -torch.nan, torch.inf]


def damage(case: SamplingCase, scores: Tensor, codes: int) -> Tensor:
    """Damages one score of every second row: NaN, infinity, or all scores -infinity. Returns which rows."""
    damaged = torch.arange(case.count) % 2 == 1
    for number, row in enumerate(damaged.nonzero().flatten().tolist()):
        choice = number % (len(NOT_FINITE) + 1)
        if choice < len(NOT_FINITE):
            scores[row, number * 7 % codes] = NOT_FINITE[choice]
        else:
            scores[row] = -torch.inf
    return damaged


def test_code_0_is_the_one_that_the_model_samples() -> None:
    """A row with a logit that is not finite gets no code and changes no other row."""
    case = all_combinations()
    logits = scores(case, VOCABULARY, 1)
    logits[:, EOS] = 4.0
    expected = case.model.code0(logits, case.seen)
    damaged = damage(case, logits, CODES)
    expected[damaged] = sampling.INVALID_CODE.value
    assert len(set(expected.tolist())) > 20
    assert EOS in expected
    seen = case.rows.seen.clone()
    seen[case.slots[~damaged], expected[~damaged]] = 1
    x, sum_of_squares = sample_code0(case, logits)
    assert case.codes[:, 0].tolist() == expected.tolist()
    assert (case.codes[:, 1:] == -1).all()
    assert torch.equal(case.rows.seen, seen)
    torch.testing.assert_close(sum_of_squares.sum(1), x.square().sum(1))
    assert case.model.code0(logits, case.seen).tolist() == expected.tolist()


def test_special_ids_are_never_sampled_and_eos_not_before_min_frames() -> None:
    case = SamplingCase([Sampling(min_frames=FRAMES + late) for late in (0, 1)] * 2, [1, 2, 3, 4])
    logits = scores(case, VOCABULARY, 3)
    logits[:, CODES:] = 50.0
    logits[:, EOS] = 40.0
    sample_code0(case, logits)
    assert [code == EOS for code in case.codes[:, 0].tolist()] == [True, False, True, False]
    assert (case.codes[1::2, 0] < CODES).all()


@pytest.mark.parametrize("group", [1, CODE_GROUPS - 1])
def test_residual_codes_are_those_that_the_model_samples(group: int) -> None:
    """A row with a score that is not finite gets no code and changes no other row."""
    case = all_combinations()
    logits = scores(case, CODES, group)
    expected = case.model.residual(logits, group)
    expected[damage(case, logits, CODES)] = sampling.INVALID_CODE.value
    table = embeddings(CODES) if group < CODE_GROUPS - 1 else None
    x, sum_of_squares = torch.full((case.count, WIDTH), torch.nan), torch.full((case.count, 5), torch.nan)
    sampling.sample_residual_code(case.rows, logits, group, table, case.codes, x, sum_of_squares)
    assert case.codes[:, group].tolist() == expected.tolist()
    assert (torch.cat((case.codes[:, :group], case.codes[:, group + 1 :]), 1) == -1).all()
    assert case.model.residual(logits, group).tolist() == expected.tolist()
    if table is None:
        assert x.isnan().all()
        assert sum_of_squares.isnan().all()
    else:
        assert torch.equal(x, table[expected.clamp(min=0)])
        torch.testing.assert_close(sum_of_squares.sum(1), x.square().sum(1))


def test_equal_scores_greedy_takes_the_first_and_top_k_keeps_all() -> None:
    greedy, tied = Sampling(residual_temperature=0.0), Sampling(residual_top_k=2)
    case = SamplingCase([greedy] * 2 + [tied] * 12, [*SEEDS, *range(6)])
    x, sum_of_squares = torch.zeros(case.count, WIDTH), torch.zeros(case.count, 1)
    scores = torch.zeros(case.count, CODES)
    scores[1, 7] = 0.01
    sampling.sample_residual_code(case.rows, scores, 3, None, case.codes, x, sum_of_squares)
    numbers = uniforms(torch.tensor(case.seeds), torch.full((case.count,), FRAMES))[:, 3]
    assert case.codes[:2, 3].tolist() == [0, 7]
    assert case.codes[2:, 3].tolist() == (numbers[2:] * CODES).long().tolist()


# Device functions ----------------------------------------------------------------------------------------------


@triton.jit
def _numbers(seeds, frames, out, GROUP: tl.constexpr):
    row = tl.program_id(0)
    tl.store(out + row, sampling.uniform(tl.load(seeds + row), tl.load(frames + row), GROUP))


@pytest.mark.parametrize("group", [0, 1, CODE_GROUPS - 1])
def test_random_numbers_are_the_models_in_24_bits(group: int) -> None:
    seeds = torch.tensor(SEEDS)
    frames = torch.tensor([0, 1, 2, 3, 100, 2047, 4095, 1 << 30], dtype=torch.int32)
    out = torch.empty(len(seeds))
    _numbers[(len(seeds),)](seeds, frames, out, GROUP=group)
    expected = torch.floor(uniforms(seeds, frames.long())[:, group] * 2**24) / 2**24
    assert torch.equal(out.double(), expected)


@triton.jit
def _reached(values, out, count, N: tl.constexpr):
    keys = sampling._sort_keys(tl.load(values + tl.arange(0, N)))
    threshold = sampling._top_k_threshold(keys, count, tl.max(keys, 0))
    tl.store(out + tl.arange(0, N), (keys >= threshold).to(tl.int32))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 15, 16, 100])
@pytest.mark.parametrize(
    "values",
    [
        [1.0] * 16,
        [3e38, -3e38, float("inf"), float("-inf"), 0.0, 1e-45, -1e-45, 1.0] * 2,
        [float("-inf")] * 12 + [-5.0, -4.0, -4.0, -3.0],
        np.linspace(-1, 1, 16).tolist(),
        np.nextafter(1, np.linspace(0, 2, 16), dtype=np.float32).tolist(),
    ],
    ids=["equal", "extremes", "few", "even", "next to each other"],
)
def test_top_k_threshold_keeps_ties(values: list[float], count: int) -> None:
    given, out = torch.tensor(values, dtype=torch.float32), torch.empty(16, dtype=torch.int32)
    _reached[(1,)](given, out, count, N=16)
    threshold = given.sort(descending=True).values[min(count, 16) - 1]
    assert out.bool().tolist() == (given >= threshold).tolist()


# Other kernels -------------------------------------------------------------------------------------------------


def test_embed_frame_sums_embeddings_and_text_and_copies_codes_to_the_host() -> None:
    random = torch.Generator().manual_seed(0)
    width, count = 600, 3
    first, rest = torch.randn(VOCABULARY, width, generator=random), torch.randn(15, CODES, width, generator=random)
    texts = torch.full((8, width), torch.nan)
    texts[[2, 5, 7]] = torch.randn(3, width, generator=random)
    codes = torch.randint(CODES, (count, CODE_GROUPS), generator=random, dtype=torch.int32)
    codes[1, 0] = codes[1, 9] = codes[2, 15] = sampling.INVALID_CODE.value
    case = SamplingCase([Sampling()] * count, [0] * count)
    case.rows.metadata[:, TEXT.value] = torch.tensor([5, 2, 7])
    case.rows.metadata[:, RING.value] = torch.tensor([1, 1, 2])
    x, sum_of_squares = torch.full((count, width), torch.nan), torch.full((count, 5), torch.nan)
    host_codes = torch.full((4, 4, CODE_GROUPS), -99, dtype=torch.int16)
    sampling.embed_frame(case.rows, codes, first, rest, texts, x, sum_of_squares, host_codes)
    valid = codes.long().clamp(min=0)
    expected = texts[[5, 2, 7]] + first[valid[:, 0]]
    expected += sum(rest[group - 1][valid[:, group]] for group in range(1, CODE_GROUPS))
    torch.testing.assert_close(x, expected)
    torch.testing.assert_close(sum_of_squares.sum(1), x.square().sum(1))
    assert torch.equal(host_codes[1, :2], codes[:2].to(torch.int16))
    assert torch.equal(host_codes[2, 2], codes[2].to(torch.int16))
    assert (host_codes == -99).sum() == host_codes.numel() - codes.numel()


def test_embed_prompts_sums_what_each_input_has() -> None:
    random = torch.Generator().manual_seed(0)
    texts, first = torch.randn(9, WIDTH, generator=random), torch.randn(VOCABULARY, WIDTH, generator=random)
    added = torch.full((4, WIDTH), torch.nan)
    added[[1, 3]] = torch.randn(2, WIDTH, generator=random)
    inputs = torch.tensor([[8, -1, 0], [0, -1, 1], [5, VOCABULARY - 1, 0], [8, 0, 1]], dtype=torch.int32)
    x, sum_of_squares = torch.full((4, WIDTH), torch.nan), torch.full((4, 3), torch.nan)
    sampling.embed_prompts(inputs, texts, first, added, x, sum_of_squares)
    expected = torch.stack((texts[8], texts[0] + added[1], texts[5] + first[-1], texts[8] + first[0] + added[3]))
    assert torch.equal(x, expected)
    torch.testing.assert_close(sum_of_squares.sum(1), x.square().sum(1))


def test_norm_last_position_writes_to_the_rows_slot() -> None:
    random, length, eps = torch.Generator().manual_seed(0), 4, 1e-6
    x = torch.randn(3 * length, WIDTH, generator=random)
    sum_of_squares = torch.stack((x.square().sum(1) / 4, 3 * x.square().sum(1) / 4), 1)
    weight = torch.randn(WIDTH, generator=random)
    metadata = torch.tensor([[4, 9, 3], [1, 9, 4], [0, 0, 0]], dtype=torch.int32)
    out = torch.full((6, WIDTH), torch.nan)
    sampling.norm_last_position(x, sum_of_squares, weight, eps, metadata, out, length)
    rows = x[[2, length + 3]]
    torch.testing.assert_close(out[[4, 1]], torch.nn.functional.rms_norm(rows, (WIDTH,), weight, eps))
    assert out[[2, 3, 5]].isnan().all()


def test_copy_rows_computes_sums_of_squares() -> None:
    x = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(0))
    out, sum_of_squares = torch.full((5, WIDTH), torch.nan), torch.full((5, 3), torch.nan)
    sampling.copy_rows(x, out, sum_of_squares)
    assert torch.equal(out, x)
    torch.testing.assert_close(sum_of_squares.sum(1), x.square().sum(1))
