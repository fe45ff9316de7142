"""Codes drawn in Triton's interpreter: with the same random numbers those that `model.sampling` draws."""

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
from syrinx_stages.kernels.sampling import SamplingInputs
from syrinx_stages.model.config import CODE_GROUPS, ModelConfig
from syrinx_stages.model.sampling import Sampler, uniforms
from syrinx_stages.talker.frame import sampling_params

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


class Drawing:
    """Rows that each draw at a slot of their own, other slots between them; what is no row's is poisoned."""

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
        self.rows.metadata[:, 0], self.rows.metadata[:, 2] = self.slots, FRAMES
        self.rows.params[self.slots] = torch.tensor([sampling_params(item) for item in samplings])
        self.rows.seeds[self.slots] = torch.tensor(seeds)
        self.seen = torch.rand(self.count, VOCABULARY, generator=random) < 0.2
        self.rows.seen[self.slots] = self.seen.to(torch.int8)
        self.codes = torch.full((self.count, CODE_GROUPS), -1, dtype=torch.int32)
        self.draw = Sampler(samplings, seeds, CONFIG, CPU).step(torch.full((self.count,), FRAMES))


def crossed() -> Drawing:
    """Every sampling with every seed."""
    pairs = [(item, seed) for item in SAMPLINGS for seed in SEEDS]
    return Drawing([item for item, _ in pairs], [seed for _, seed in pairs])


def scores(drawing: Drawing, vocabulary: int, seed: int) -> Tensor:
    """Random ones; but for top-p, which of the like the model keeps some of, the best and another are there twice."""
    values = 3 * torch.randn(drawing.count, vocabulary, generator=torch.Generator().manual_seed(seed))
    alike = torch.tensor([item.top_p == item.residual_top_p == 1 for item in drawing.samplings])
    values[alike, 5] = values[alike, :CODES].max(1).values
    values[alike, 9] = values[alike, 11]
    return values


def draw_code0(drawing: Drawing, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the predictor's inputs, and the sums of their squares."""
    state = torch.randn(drawing.count, WIDTH, generator=torch.Generator().manual_seed(3))
    x, squares = torch.full((2 * drawing.count, WIDTH), torch.nan), torch.full((2 * drawing.count, 3), torch.nan)
    bias, table = torch.arange(WIDTH) / WIDTH, embeddings(VOCABULARY)
    sampling.sample_first_code(
        drawing.rows, torch.cat((logits, state), 1), bias, table, drawing.codes, x, squares,
        eos=EOS, num_special=VOCABULARY - CODES,
    )  # fmt: skip
    torch.testing.assert_close(x[: drawing.count], state + bias)
    assert torch.equal(x[drawing.count :], table[drawing.codes[:, 0].long()])
    return x, squares


def embeddings(count: int) -> Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(4))


def test_code_0_is_the_one_that_the_model_draws() -> None:
    drawing = crossed()
    logits = scores(drawing, VOCABULARY, 1)
    logits[:, EOS] = 4.0
    wanted = drawing.draw.code0(logits, drawing.seen)
    assert len(set(wanted.tolist())) > 20
    assert EOS in wanted
    x, squares = draw_code0(drawing, logits)
    assert drawing.codes[:, 0].tolist() == wanted.tolist()
    assert (drawing.codes[:, 1:] == -1).all()
    torch.testing.assert_close(squares.sum(1), x.square().sum(1))


def test_what_was_said_is_noted_at_the_own_slot() -> None:
    drawing = Drawing([Sampling()] * 6, list(range(6)))
    before = drawing.rows.seen.clone()
    draw_code0(drawing, scores(drawing, VOCABULARY, 2))
    before[drawing.slots, drawing.codes[:, 0].long()] = 1
    assert torch.equal(drawing.rows.seen, before)


def test_marks_are_never_drawn_and_the_end_not_before_its_time() -> None:
    drawing = Drawing([Sampling(min_frames=FRAMES + late) for late in (0, 1)] * 2, [1, 2, 3, 4])
    logits = scores(drawing, VOCABULARY, 3)
    logits[:, CODES:] = 50.0
    logits[:, EOS] = 40.0
    draw_code0(drawing, logits)
    assert [code == EOS for code in drawing.codes[:, 0].tolist()] == [True, False, True, False]
    assert (drawing.codes[1::2, 0] < CODES).all()


@pytest.mark.parametrize("group", [1, CODE_GROUPS - 1])
def test_residual_codes_are_those_that_the_model_draws(group: int) -> None:
    drawing = crossed()
    logits = scores(drawing, CODES, group)
    wanted = drawing.draw.residual(logits, group)
    table = embeddings(CODES) if group < CODE_GROUPS - 1 else None
    x, squares = torch.full((drawing.count, WIDTH), torch.nan), torch.full((drawing.count, 5), torch.nan)
    sampling.sample_residual_code(drawing.rows, logits, group, table, drawing.codes, x, squares)
    assert drawing.codes[:, group].tolist() == wanted.tolist()
    assert (drawing.codes == -1).sum() == drawing.count * (CODE_GROUPS - 1)
    if table is None:
        assert x.isnan().all()
        assert squares.isnan().all()
    else:
        assert torch.equal(x, table[wanted])
        torch.testing.assert_close(squares.sum(1), x.square().sum(1))


def test_where_all_are_alike_the_first_is_the_best_and_top_k_keeps_them_all() -> None:
    greedy, all_alike = Sampling(residual_temperature=0.0), Sampling(residual_top_k=2)
    drawing = Drawing([greedy] * 2 + [all_alike] * 12, [*SEEDS, *range(6)])
    x, squares = torch.zeros(drawing.count, WIDTH), torch.zeros(drawing.count, 1)
    sampling.sample_residual_code(drawing.rows, torch.zeros(drawing.count, CODES), 3, None, drawing.codes, x, squares)
    numbers = uniforms(torch.tensor(drawing.seeds), torch.full((drawing.count,), FRAMES))[:, 3]
    assert drawing.codes[:2, 3].tolist() == [0, 0]
    assert drawing.codes[2:, 3].tolist() == (numbers[2:] * CODES).long().tolist()


# Parts of a draw -----------------------------------------------------------------------------------------------


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
    wanted = torch.floor(uniforms(seeds, frames.long())[:, group] * 2**24) / 2**24
    assert torch.equal(out.double(), wanted)


@triton.jit
def _reached(values, out, count, N: tl.constexpr):
    keys = sampling._sort_keys(tl.load(values + tl.arange(0, N)))
    least = sampling._top_k_threshold(keys, count, tl.max(keys, 0))
    tl.store(out + tl.arange(0, N), (keys >= least).to(tl.int32))


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
def test_the_best_few_are_found_and_all_like_the_last(values: list[float], count: int) -> None:
    given, out = torch.tensor(values, dtype=torch.float32), torch.empty(16, dtype=torch.int32)
    _reached[(1,)](given, out, count, N=16)
    least = given.sort(descending=True).values[min(count, 16) - 1]
    assert out.bool().tolist() == (given >= least).tolist()


# What is around the draws --------------------------------------------------------------------------------------


def test_a_frames_embeddings_and_its_text_are_summed_and_its_codes_handed_over() -> None:
    random = torch.Generator().manual_seed(0)
    width, count = 600, 3
    first, rest = torch.randn(VOCABULARY, width, generator=random), torch.randn(15, CODES, width, generator=random)
    texts = torch.full((8, width), torch.nan)
    texts[[2, 5, 7]] = torch.randn(3, width, generator=random)
    codes = torch.randint(CODES, (count, CODE_GROUPS), generator=random, dtype=torch.int32)
    drawing = Drawing([Sampling()] * count, [0] * count)
    drawing.rows.metadata[:, 3], drawing.rows.metadata[:, 4] = torch.tensor([5, 2, 7]), torch.tensor([1, 1, 2])
    x, squares = torch.full((count, width), torch.nan), torch.full((count, 5), torch.nan)
    handed = torch.full((4, 4, CODE_GROUPS), -1, dtype=torch.int16)
    sampling.embed_frame(drawing.rows, codes, first, rest, texts, x, squares, handed)
    wanted = texts[[5, 2, 7]] + first[codes[:, 0].long()]
    wanted += sum(rest[group - 1][codes[:, group].long()] for group in range(1, CODE_GROUPS))
    torch.testing.assert_close(x, wanted)
    torch.testing.assert_close(squares.sum(1), x.square().sum(1))
    assert torch.equal(handed[1, :2], codes[:2].to(torch.int16))
    assert torch.equal(handed[2, 2], codes[2].to(torch.int16))
    assert (handed == -1).sum() == handed.numel() - codes.numel()


def test_the_last_position_of_each_row_is_normalised_into_its_slot() -> None:
    random, length, eps = torch.Generator().manual_seed(0), 4, 1e-6
    x = torch.randn(3 * length, WIDTH, generator=random)
    squares = torch.stack((x.square().sum(1) / 4, 3 * x.square().sum(1) / 4), 1)
    weight = torch.randn(WIDTH, generator=random)
    places = torch.tensor([[4, 9, 3], [1, 9, 4], [0, 0, 0]], dtype=torch.int32)
    out = torch.full((6, WIDTH), torch.nan)
    sampling.norm_last_position(x, squares, weight, eps, places, out, length)
    rows = x[[2, length + 3]]
    torch.testing.assert_close(out[[4, 1]], torch.nn.functional.rms_norm(rows, (WIDTH,), weight, eps))
    assert out[[2, 3, 5]].isnan().all()


def test_inputs_enter_with_their_squares() -> None:
    x = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(0))
    out, squares = torch.full((5, WIDTH), torch.nan), torch.full((5, 3), torch.nan)
    sampling.copy_rows(x, out, squares)
    assert torch.equal(out, x)
    torch.testing.assert_close(squares.sum(1), x.square().sum(1))
