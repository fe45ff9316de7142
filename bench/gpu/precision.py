"""Measures the effect of the number format on a talker's codes; every variant is fed the codes of the reference.

The reference is `model/` in float32 on the same device, without TF32. Each variant computes its scores for each code
and samples with the same random number. The variants are the engine in bfloat16 and in float32 (whose products are
TF32), through its own launch and read, and, for comparison, `model/` in bfloat16.
"""

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
from syrinx_stages.model.sampling import Sampler
from syrinx_stages.model.talker import Talker
from syrinx_stages.talker.cuda import frame
from syrinx_stages.talker.cuda.engine import CudaTalkerEngine
from syrinx_stages.talker.cuda.prefill import plan_prefills
from syrinx_stages.talker.inputs import EmbeddedPrompt, embed
from syrinx_stages.talker.prompt import Prompter

FRAMES = 40
TEXTS = (
    "The old teacher found two heavy bags near the river, and carried them home before it began to rain.",
    "Please leave the window open tonight, because the kitchen is still warm from all the baking this afternoon.",
    "Nobody knew why the train had stopped, but after an hour most of us had begun to walk along the tracks.",
    "She wrote a long letter to her brother about the garden, the neighbours and the price of apples.",
)


@dataclass
class Outputs:
    """One variant's outputs for the reference's frames, on the CPU."""

    logits: list[Tensor] = field(default_factory=list)
    """Of code 0: [rows, vocabulary] for each frame."""
    scores: list[Tensor] = field(default_factory=list)
    """Of codes 1 to 15, in order for each frame: [rows, codebook]."""
    sampled: list[Tensor] = field(default_factory=list)
    """Codes 0 to 15, in order for each frame: [rows]."""

    def codes(self) -> Tensor:
        """Returns the sampled codes, int64 [frames, rows, 16]."""
        return torch.stack(self.sampled).view(-1, CODE_GROUPS, len(self.sampled[0])).transpose(1, 2).contiguous()


def requests(config: ModelConfig) -> list[SpeechRequest]:
    """Returns a request for each text; none samples EOS."""
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


def eager(talker: Talker, prompts: Sequence[EmbeddedPrompt], sampler: Sampler, given: Tensor | None = None) -> Outputs:
    """Returns the outputs of `model/`, fed its own codes or `given` [frames, rows, 16]."""
    outputs, rows, device = Outputs(), len(prompts), talker.device
    caches = [talker.new_cache() for _ in prompts]
    hidden = torch.stack([talker.prefill(prompt.embeds, cache) for prompt, cache in zip(prompts, caches, strict=True)])
    seen = torch.zeros(rows, talker.config.vocab_size, dtype=torch.bool, device=device)
    for number in range(FRAMES):
        sample = sampler.step(torch.full((rows,), number, device=device))
        forced = None if given is None else given[number].to(device)

        def fed(sampled: Tensor, group: int, forced: Tensor | None = forced) -> Tensor:
            outputs.sampled.append(sampled.cpu())
            return sampled if forced is None else forced[:, group]

        def choose(scores: Tensor, group: int, sample: Any = sample, fed: Any = fed) -> Tensor:
            outputs.scores.append(scores.to("cpu", torch.float32, copy=True))
            chosen: Tensor = fed(sample.residual(scores, group), group)
            return chosen

        logits = talker.logits(hidden)
        outputs.logits.append(logits.to("cpu", torch.float32, copy=True))
        codes = talker.predict(hidden, fed(sample.code0(logits, seen), 0), choose)
        seen.scatter_(1, codes[:, :1], True)
        texts = torch.stack([prompt.text_row(number) for prompt in prompts])
        hidden = talker.decode(talker.embed_frame(codes) + texts, caches)
    return outputs


class Forced:
    """Records what a frame's kernels sample, and continues with given codes."""

    def __init__(self) -> None:
        self.outputs = Outputs()
        self.codes = torch.empty(0)
        """The next frame, int32 [rows, 16] on the device."""

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Returns a context in which frames use this object's sampling functions."""
        with (
            patch.object(frame, "sample_first_code", self._code0),
            patch.object(frame, "sample_residual_code", self._residual),
        ):
            yield

    def _code0(
        self, inputs: SamplingInputs, scores: Tensor, bias: Tensor, table: Tensor, codes: Tensor, x: Tensor,
        sum_of_squares: Tensor, **options: int,
    ) -> None:  # fmt: skip
        before = inputs.seen.clone()
        sample_first_code(inputs, scores, bias, table, codes, x, sum_of_squares, **options)
        self.outputs.logits.append(scores[:, : table.shape[0]].to("cpu", copy=True))
        self._replace(0, table, codes, x[len(codes) :], sum_of_squares[len(codes) :])
        inputs.seen.copy_(before)
        inputs.seen[inputs.metadata[:, 0].long(), self.codes[:, 0].long()] = 1

    def _residual(
        self,
        inputs: SamplingInputs,
        scores: Tensor,
        group: int,
        table: Tensor | None,
        codes: Tensor,
        x: Tensor,
        sum_of_squares: Tensor,
    ) -> None:
        sample_residual_code(inputs, scores, group, table, codes, x, sum_of_squares)
        self.outputs.scores.append(scores.to("cpu", copy=True))
        self._replace(group, table, codes, x, sum_of_squares)

    def _replace(self, group: int, table: Tensor | None, codes: Tensor, x: Tensor, sum_of_squares: Tensor) -> None:
        """Replaces the sampled code by the given one, and the next input by its row of `table`."""
        self.outputs.sampled.append(codes[:, group].to("cpu", torch.int64))
        codes[:, group] = self.codes[:, group]
        if table is not None:
            copy_rows(table[self.codes[:, group].long()], x, sum_of_squares)


def engine(checkpoint: Checkpoint, speech_requests: Sequence[SpeechRequest], given: Tensor) -> Outputs:
    """Returns the engine's outputs, fed the codes `given` [frames, rows, 16]."""
    rows, ids, forced = len(speech_requests), [request.id for request in speech_requests], Forced()
    talker = CudaTalkerEngine(checkpoint, rows)
    prepared = [talker.prepare(request, b"", None) for request in speech_requests]
    shapes = {(plan.rows, plan.length) for plan in plan_prefills([each.positions for each in prepared])}
    # Not captured as graphs, because the given codes change with each frame.
    runner = talker.runner
    with runner.recorder.on_stream(), forced.patched():
        step = runner.new_frame(rows)
        runner.batch_sizes = [rows]
        runner.frames[rows] = step, step.sample_codes, step.decode
        for shape in shapes:
            prefill = runner.new_prefill(*shape)
            runner.prefills[shape] = prefill, prefill.run
        talker.admit(prepared)
        for codes in given.to(runner.state.hidden.device, torch.int32):
            forced.codes = codes
            results = talker.read(talker.launch(ids))
            assert list(results) == ids, "every request has a frame"
    return forced.outputs


def error(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Returns the relative error of scores: norm of the difference over norm, both without each row's mean."""
    differences, norms = 0.0, 0.0
    for ours, theirs in zip(actual, expected, strict=True):
        ours, theirs = (scores.double() - scores.double().mean(-1, keepdim=True) for scores in (ours, theirs))
        differences += float((ours - theirs).square().sum())
        norms += float(theirs.square().sum())
    return float((differences / norms) ** 0.5)


def best(outputs: Outputs, codes: Tensor, sampler: Sampler) -> Tensor:
    """Returns the codes at temperature 0 [frames, rows, 16], given earlier frames from `codes`."""
    seen = torch.zeros_like(outputs.logits[0], dtype=torch.bool)
    found = []
    for number, (logits, frame_codes) in enumerate(zip(outputs.logits, codes, strict=True)):
        scores = sampler.code0_scores(logits, seen, torch.full((len(logits),), number))
        later = outputs.scores[number * (CODE_GROUPS - 1) : (number + 1) * (CODE_GROUPS - 1)]
        found.append(torch.stack([each.argmax(-1) for each in (scores, *later)], 1))
        seen.scatter_(1, frame_codes[:, :1], True)
    return torch.stack(found)


def compare_outputs(actual: Outputs, expected: Outputs, codes: Tensor, sampler: Sampler) -> dict[str, float]:
    """Returns one variant's errors of scores and shares of equal codes."""
    sampled = actual.codes() == expected.codes()
    greedy = best(actual, codes, sampler) == best(expected, codes, sampler)
    return {
        "code0_error": error(actual.logits, expected.logits),
        "residual_error": error(actual.scores, expected.scores),
        "code0_equal": float(sampled[..., 0].double().mean()),
        "residual_equal": float(sampled[..., 1:].double().mean()),
        "code0_best_equal": float(greedy[..., 0].double().mean()),
        "residual_best_equal": float(greedy[..., 1:].double().mean()),
    }


@torch.inference_mode()
def compare(load: Callable[[torch.dtype], Checkpoint]) -> dict[str, dict[str, float]]:
    """Returns the results by variant. `load` returns the checkpoint in a dtype.

    Raises `RequestError` for a Base checkpoint, which needs a reference voice.
    """
    checkpoint = load(torch.float32)
    config: TalkerConfig = checkpoint.config.talker_config
    speech_requests = requests(checkpoint.config)
    samplings, seeds = [request.sampling for request in speech_requests], [request.seed for request in speech_requests]

    def run_modules(dtype: torch.dtype, given: Tensor | None) -> Outputs:
        own = load(dtype)
        talker = own.load_talker()
        prompter = Prompter(Checkpoint(str(own.directory), own.device), talker)
        prompts = [embed(talker, prompter.prepare(request).prompt) for request in speech_requests]
        return eager(talker, prompts, Sampler(samplings, seeds, config, own.device), given)

    # "highest" disables TF32 in products; the MATH backend has none in attention.
    torch.set_float32_matmul_precision("highest")
    with sdpa_kernel(SDPBackend.MATH):
        expected = run_modules(torch.float32, None)
    codes = expected.codes()
    sampler = Sampler(samplings, seeds, config, torch.device("cpu"))
    variants: dict[str, Callable[[], Outputs]] = {
        "engine, bfloat16": lambda: engine(load(torch.bfloat16), speech_requests, codes),
        "engine, float32": lambda: engine(load(torch.float32), speech_requests, codes),
        "PyTorch, bfloat16": lambda: run_modules(torch.bfloat16, codes),
    }
    return {name: compare_outputs(run(), expected, codes, sampler) for name, run in variants.items()}


def table(model: str, found: Mapping[str, Mapping[str, float]]) -> str:
    """Returns the results as text."""
    lines = [f"{model}: error of code 0 / codes 1 to 15; equal sampled codes; equal greedy codes"]
    for name, figures in found.items():
        lines.append("  {:18} {:.2e} / {:.2e}; {:.2%} / {:.2%}; {:.2%} / {:.2%}".format(name, *figures.values()))
    return "\n".join(lines)
