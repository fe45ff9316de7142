"""What a number format changes in what a talker says: every variant is fed the same codes, those of the reference.

The reference is `model/` in float32 on the same device, without tensor cores; it draws its codes as the official
package does. Each variant gives its scores for each of them, and the code that it would have drawn with the same random
number: the engine in bfloat16 and in float32 (whose products are TF32), through its own launch and read, and, to
compare with, `model/` in bfloat16, which is what PyTorch makes of the format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from syrinx_stages.contract.messages import Sampling, SpeechRequest
from syrinx_stages.kernels.sampling import SamplingInputs, copy_rows, sample_first_code, sample_residual_code
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.config import CODE_GROUPS, ModelConfig, ModelType, TalkerConfig
from syrinx_stages.model.describe import TASK_TYPES
from syrinx_stages.model.prompt import Prompt
from syrinx_stages.model.sampling import Sampler
from syrinx_stages.model.talker import Talker
from syrinx_stages.talker import frame
from syrinx_stages.talker.allocation import bucket_for
from syrinx_stages.talker.cuda_engine import LENGTHS, MOST_PAGES, PREFILL_POSITIONS, PREFILL_ROWS, CudaTalkerEngine
from syrinx_stages.talker.frame import Frame, Prefill
from syrinx_stages.talker.prompter import Prompter

FRAMES = 40
TEXTS = (
    "The old teacher found two heavy bags near the river, and carried them home before it began to rain.",
    "Please leave the window open tonight, because the kitchen is still warm from all the baking this afternoon.",
    "Nobody knew why the train had stopped, but after an hour most of us had begun to walk along the tracks.",
    "She wrote a long letter to her brother about the garden, the neighbours and the price of apples.",
)


@dataclass
class Said:
    """What one variant makes of the reference's frames. All on the CPU."""

    logits: list[Tensor] = field(default_factory=list)
    """Of code 0: one [rows, vocabulary] a frame."""
    scores: list[Tensor] = field(default_factory=list)
    """Of codes 1 to 15, one after the other in each frame: [rows, codebook]."""
    drawn: list[Tensor] = field(default_factory=list)
    """Of codes 0 to 15, one after the other in each frame: [rows]."""

    def codes(self) -> Tensor:
        """What was drawn: [frames, rows, 16] long."""
        return torch.stack(self.drawn).view(-1, CODE_GROUPS, len(self.drawn[0])).transpose(1, 2).contiguous()


def requests(config: ModelConfig) -> list[SpeechRequest]:
    """One for each text, that does not draw its end."""
    codec = config.talker_config
    voice = next(iter(codec.speakers), None) if config.tts_model_type is ModelType.CUSTOM_VOICE else None
    return [
        SpeechRequest(
            id=str(seed),
            accepted_at=0.0,
            text=text,
            task_type=TASK_TYPES[config.tts_model_type],
            voice=voice,
            language=next(iter(codec.codec_language_id), "auto"),
            non_streaming_text=False,
            sampling=Sampling(min_frames=FRAMES + 1),
            seed=seed,
        )
        for seed, text in enumerate(TEXTS)
    ]


def eager(talker: Talker, prompts: Sequence[Prompt], sampler: Sampler, given: Tensor | None = None) -> Said:
    """What `model/` says, of its own codes or of those that are given [frames, rows, 16]."""
    said, rows, device = Said(), len(prompts), talker.device
    caches = [talker.new_cache() for _ in prompts]
    hidden = torch.stack([talker.prefill(prompt.embeds, cache) for prompt, cache in zip(prompts, caches, strict=True)])
    seen = torch.zeros(rows, talker.config.vocab_size, dtype=torch.bool, device=device)
    for number in range(FRAMES):
        draw = sampler.step(torch.full((rows,), number, device=device))
        forced = None if given is None else given[number].to(device)

        def used(drawn: Tensor, group: int, forced: Tensor | None = forced) -> Tensor:
            said.drawn.append(drawn.cpu())
            return drawn if forced is None else forced[:, group]

        def choose(scores: Tensor, group: int, draw: Any = draw, used: Any = used) -> Tensor:
            said.scores.append(scores.to("cpu", torch.float32, copy=True))
            chosen: Tensor = used(draw.residual(scores, group), group)
            return chosen

        logits = talker.logits(hidden)
        said.logits.append(logits.to("cpu", torch.float32, copy=True))
        codes = talker.predict(hidden, used(draw.code0(logits, seen), 0), choose)
        seen.scatter_(1, codes[:, :1], True)
        texts = torch.stack([prompt.text_row(number) for prompt in prompts])
        hidden = talker.decode(talker.embed_frame(codes) + texts, caches)
    return said


class Forced:
    """Lets a frame's kernels draw, notes what, and goes on with a code that it is given."""

    def __init__(self) -> None:
        self.said = Said()
        self.codes = torch.empty(0)
        """Of the frame that is next: [rows, 16] int32, on the device."""

    @contextmanager
    def instead(self) -> Iterator[None]:
        """Within, frames that run do so."""
        with (
            patch.object(frame, "sample_first_code", self._code0),
            patch.object(frame, "sample_residual_code", self._residual),
        ):
            yield

    def _code0(
        self, where: SamplingInputs, scores: Tensor, bias: Tensor, table: Tensor, codes: Tensor, x: Tensor,
        squares: Tensor, **marks: int,
    ) -> None:  # fmt: skip
        before = where.seen.clone()
        sample_first_code(where, scores, bias, table, codes, x, squares, **marks)
        self.said.logits.append(scores[:, : table.shape[0]].to("cpu", copy=True))
        self._go_on(0, table, codes, x[len(codes) :], squares[len(codes) :])
        where.seen.copy_(before)
        where.seen[where.metadata[:, 0].long(), self.codes[:, 0].long()] = 1

    def _residual(
        self,
        where: SamplingInputs,
        scores: Tensor,
        group: int,
        table: Tensor | None,
        codes: Tensor,
        x: Tensor,
        squares: Tensor,
    ) -> None:
        sample_residual_code(where, scores, group, table, codes, x, squares)
        self.said.scores.append(scores.to("cpu", copy=True))
        self._go_on(group, table, codes, x, squares)

    def _go_on(self, group: int, table: Tensor | None, codes: Tensor, x: Tensor, squares: Tensor) -> None:
        """The given code in place of the one that was drawn, and its row of `table` as the next input."""
        self.said.drawn.append(codes[:, group].to("cpu", torch.int64))
        codes[:, group] = self.codes[:, group]
        if table is not None:
            copy_rows(table[self.codes[:, group].long()], x, squares)


def engine(checkpoint: Checkpoint, asked: Sequence[SpeechRequest], given: Tensor) -> Said:
    """What the engine says of the codes that it is given [frames, rows, 16]."""
    rows, ids, forced = len(asked), [request.id for request in asked], Forced()
    talker = CudaTalkerEngine(checkpoint, rows)
    prepared = [talker.prepare(request, b"", None) for request in asked]
    length = bucket_for(LENGTHS, max(len(each.prompt.embeds) for each in prepared))
    # One after the other, not recorded: each is run a few times, and a frame must be told its codes.
    with talker._recorder.on_stream(), forced.instead():
        step = Frame(talker._weights, talker._config, talker._arena, rows, MOST_PAGES)
        talker._sizes, talker._frames[rows] = [rows], (step, step.draw_codes, step.advance)
        for count in PREFILL_ROWS:
            if count * length <= PREFILL_POSITIONS:
                prefill = Prefill(talker._weights, talker._arena, count, length, MOST_PAGES)
                talker._prefills[count, length] = prefill, prefill.run
        talker.admit(prepared)
        for codes in given.to(talker._device, torch.int32):
            forced.codes = codes
            made = talker.read(talker.launch(ids))
            assert list(made) == ids, "no frame is left out, none is an end"
    return forced.said


def error(said: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """Of scores against the reference's, less the mean of each row: the norm of the difference over the norm."""
    differences, norms = 0.0, 0.0
    for ours, theirs in zip(said, wanted, strict=True):
        ours, theirs = (scores.double() - scores.double().mean(-1, keepdim=True) for scores in (ours, theirs))
        differences += float((ours - theirs).square().sum())
        norms += float(theirs.square().sum())
    return float((differences / norms) ** 0.5)


def best(said: Said, codes: Tensor, sampler: Sampler) -> Tensor:
    """What would be drawn at temperature 0, the frames before being `codes`: [frames, rows, 16]."""
    seen = torch.zeros_like(said.logits[0], dtype=torch.bool)
    found = []
    for number, (logits, frame_codes) in enumerate(zip(said.logits, codes, strict=True)):
        scores = sampler.code0_scores(logits, seen, torch.full((len(logits),), number))
        later = said.scores[number * (CODE_GROUPS - 1) : (number + 1) * (CODE_GROUPS - 1)]
        found.append(torch.stack([each.argmax(-1) for each in (scores, *later)], 1))
        seen.scatter_(1, frame_codes[:, :1], True)
    return torch.stack(found)


def compared(said: Said, wanted: Said, codes: Tensor, sampler: Sampler) -> dict[str, float]:
    """The figures of one variant: errors of scores, and shares of equal codes."""
    drawn = said.codes() == wanted.codes()
    liked = best(said, codes, sampler) == best(wanted, codes, sampler)
    return {
        "code0_error": error(said.logits, wanted.logits),
        "residual_error": error(said.scores, wanted.scores),
        "code0_equal": float(drawn[..., 0].double().mean()),
        "residual_equal": float(drawn[..., 1:].double().mean()),
        "code0_best_equal": float(liked[..., 0].double().mean()),
        "residual_best_equal": float(liked[..., 1:].double().mean()),
    }


@torch.inference_mode()
def compare(load: Callable[[torch.dtype], Checkpoint]) -> dict[str, dict[str, float]]:
    """The figures by variant. `load` gives the checkpoint in a number format.

    Raises `RequestError` for a Base checkpoint, which speaks no text without a reference voice.
    """
    checkpoint = load(torch.float32)
    config: TalkerConfig = checkpoint.config.talker_config
    asked = requests(checkpoint.config)
    samplings, seeds = [request.sampling for request in asked], [request.seed for request in asked]

    def plain(kind: torch.dtype, given: Tensor | None) -> Said:
        own = load(kind)
        talker = own.load_talker()
        prompter = Prompter(Checkpoint(str(own.directory), own.device), talker)
        prompts = [prompter.build(request, None)[0] for request in asked]
        return eager(talker, prompts, Sampler(samplings, seeds, config, own.device), given)

    # Without TF32, which is PyTorch's default, and with an attention that has none either.
    torch.set_float32_matmul_precision("highest")
    with sdpa_kernel(SDPBackend.MATH):
        wanted = plain(torch.float32, None)
    codes = wanted.codes()
    sampler = Sampler(samplings, seeds, config, torch.device("cpu"))
    variants: dict[str, Callable[[], Said]] = {
        "engine, bfloat16": lambda: engine(load(torch.bfloat16), asked, codes),
        "engine, float32": lambda: engine(load(torch.float32), asked, codes),
        "PyTorch, bfloat16": lambda: plain(torch.bfloat16, codes),
    }
    return {name: compared(say(), wanted, codes, sampler) for name, say in variants.items()}


def table(model: str, found: Mapping[str, Mapping[str, float]]) -> str:
    """The figures as lines of text."""
    lines = [f"{model}: error of code 0 / codes 1 to 15; equal codes drawn; equal best codes"]
    for name, figures in found.items():
        lines.append("  {:18} {:.2e} / {:.2e}; {:.2%} / {:.2%}; {:.2%} / {:.2%}".format(name, *figures.values()))
    return "\n".join(lines)
