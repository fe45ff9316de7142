"""Compares a talker engine, under requests that come and go, with the float32 modules of `model/`.

The modules are fed the codes that the engine sampled. So each code is compared with what the modules would have sampled
at that position with the same random number, and the comparison goes on after a difference.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from support import small_talker
from syrinx_stages.contract.messages import End, EndReason, Sampling, SpeechRequest
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.config import CODE_GROUPS
from syrinx_stages.model.sampling import Sampler, uniforms
from syrinx_stages.model.talker import KVCache, Talker
from syrinx_stages.talker.inputs import EmbeddedPrompt, Prompt, embed
from syrinx_stages.talker.prompt import Prepared, Prompter

if TYPE_CHECKING:
    # Imported late: the first import of the kernels decides whether they are interpreted.
    from syrinx_stages.talker.cuda.engine import CudaTalkerEngine
    from syrinx_stages.talker.engine import TalkerEngine

CPU = torch.device("cpu")
SAMPLINGS = (
    Sampling(top_k=0, residual_top_k=0, min_frames=0),
    Sampling(temperature=1.1, top_k=20, repetition_penalty=1.4, residual_top_k=25, min_frames=4),
    Sampling(temperature=0.7, top_k=0, top_p=0.9, residual_temperature=1.2, residual_top_p=0.95),
    Sampling(temperature=0.0, residual_temperature=0.0, repetition_penalty=1.2),
)


class ReferenceRequest(msgspec.Struct):
    """One request in the modules: its frames, and the state that the next frame is sampled from."""

    request: SpeechRequest
    ids: Prompt
    prompt: EmbeddedPrompt
    """Its embeddings."""
    cache: KVCache
    hidden: Tensor
    seen: Tensor
    """[1, vocabulary] bool."""
    sampler: Sampler
    frames: list[bytes] = []
    end: End | None = None


class Reference:
    """The modules in float32; they sample as `EagerTalkerEngine` does."""

    def __init__(self, checkpoint: Checkpoint, talker: Talker | None = None) -> None:
        """talker: in float32, instead of the checkpoint's."""
        self.talker = talker or checkpoint.load_talker()
        self._prompter = Prompter(checkpoint, self.talker)

    @property
    def voices(self) -> list[str]:
        """Names of the checkpoint's voices."""
        return sorted(self.talker.config.speakers)

    @torch.inference_mode()
    def start(self, request: SpeechRequest) -> ReferenceRequest:
        """Prefills a request."""
        talker, config = self.talker, self.talker.config
        ids, cache = self._prompter.prepare(request).prompt, talker.new_cache()
        prompt = embed(talker, ids)
        return ReferenceRequest(
            request=request,
            ids=ids,
            prompt=prompt,
            cache=cache,
            hidden=talker.prefill(prompt.embeds, cache),
            seen=torch.zeros(1, config.vocab_size, dtype=torch.bool),
            sampler=Sampler([request.sampling], [request.seed], config, CPU),
        )

    @torch.inference_mode()
    def errors(self, rows: Sequence[ReferenceRequest], results: Sequence[bytes | End]) -> list[float]:
        """Returns the error of each row's next frame or EOS, and appends it to the row.

        A frame's error is that of its worst code: the distance, in probability, from the random number to the code's
        interval. It is 0 if the modules sample the same codes.
        """
        talker = self.talker
        eos = talker.config.codec_eos_token_id
        frames = np.array([_codes(item, eos) for item in results], np.int64)
        assert frames.min() >= 0
        assert frames[:, 0].max() < talker.config.vocab_size
        assert frames[:, 1:].max() < talker.config.codebook_size
        codes = torch.from_numpy(frames).to(talker.device)
        hidden = torch.stack([row.hidden for row in rows])
        errors = np.zeros((len(rows), CODE_GROUPS))
        for index, (row, logits) in enumerate(zip(rows, talker.logits(hidden).cpu(), strict=True)):
            scores = row.sampler.code0_scores(logits[None], row.seen, torch.tensor([len(row.frames)]))
            errors[index, 0] = _error(row, scores, 0, int(frames[index, 0]))

        def forced(scores: Tensor, group: int) -> Tensor:
            for index, (row, own) in enumerate(zip(rows, scores.cpu(), strict=True)):
                errors[index, group] = _error(row, own[None], group, int(frames[index, group]))
            return codes[:, group]

        talker.predict(hidden, codes[:, 0], forced)
        texts = torch.stack([row.prompt.text_row(len(row.frames)) for row in rows])
        hidden = talker.decode(talker.embed_frame(codes) + texts, [row.cache for row in rows])
        for row, item, state, code in zip(rows, results, hidden, frames[:, 0], strict=True):
            if isinstance(item, End):
                row.end = item
            else:
                row.frames.append(item)
                row.hidden = state
                row.seen[0, code] = True
        ends = [isinstance(item, End) for item in results]
        return [float(row[0] if end else row.max()) for row, end in zip(errors, ends, strict=True)]


def _codes(result: bytes | End, eos: int) -> np.ndarray:
    return np.array([eos] + [0] * (CODE_GROUPS - 1)) if isinstance(result, End) else np.frombuffer(result, "<i2")


def _error(row: ReferenceRequest, scores: Tensor, group: int, code: int) -> float:
    """Returns the distance from a row's random number to the interval of a code.

    At temperature 0: by how much the best code is more probable.
    """
    sampling, sampler = row.request.sampling, row.sampler
    if (sampling.residual_temperature if group else sampling.temperature) == 0:
        shares = scores.double().softmax(-1)[0]
        return float(shares.max() - shares[code])
    shares = (sampler.residual_filter if group else sampler.code0_filter).filter(scores).double().softmax(-1)[0]
    number = float(uniforms(sampler.seeds, torch.tensor([len(row.frames)]))[0, group])
    above = float(shares[: code + 1].sum())
    return max(0.0, above - float(shares[code]) - number, number - above)


class Lifetimes:
    """Drives an engine with two steps in flight; `errors` has the error of each frame, see `Reference.errors`."""

    def __init__(
        self,
        reference: Reference,
        engine: TalkerEngine,
        resident: int,
        *,
        seed: int = 0,
        max_frames: int = 5,
        arrival_probability: float = 0.8,
        before_launch: Callable[[], None] = lambda: None,
        after_launch: Callable[[Any], None] = lambda step: None,
    ) -> None:
        """arrival_probability: of one more request before a step, while fewer than `resident` are present.

        before_launch: called before every launch. after_launch: called with the step that it returns.
        """
        self._reference, self._engine, self._resident = reference, engine, resident
        self._before_launch, self._after_launch = before_launch, after_launch
        self._max_frames, self._arrival_probability = max_frames, arrival_probability
        self._random = random.Random(seed)
        self._present: dict[str, ReferenceRequest] = {}
        self._preempted: list[ReferenceRequest] = []
        self._unread: list[tuple[Any, dict[str, ReferenceRequest]]] = []
        self.all: list[ReferenceRequest] = []
        """Every request, with its frames."""
        self.resumed = 0
        """How many requests were admitted again after a release."""
        self.errors: list[float] = []

    def run(self, steps: int) -> None:
        """Runs steps of most of the present requests."""
        for _ in range(steps):
            admitted = self._release_and_admit()
            names = sorted(self._present)
            self._random.shuffle(names)
            if len(names) > 1 and self._random.random() < 0.2:
                names.pop()
            self._before_launch()
            step = self._engine.launch(names)
            self._after_launch(step)
            # What was just admitted may be prefilled beside this step rather than before it, and joins the next one.
            known = {*getattr(step, "ids", names), *getattr(step, "full", ())}
            joined = set(names) - (admitted - known)
            self._unread.append((step, {name: self._present[name] for name in joined}))
            if len(self._unread) == 2:
                self._read()
        while self._unread:
            self._read()
        for name in list(self._present):
            self._engine.release(name)
        self._present.clear()

    def _release_and_admit(self) -> set[str]:
        """Releases and admits requests; returns what was admitted. Memory is reused while steps of its last owner are
        unread."""
        for name, request in list(self._present.items()):
            if self._random.random() < (0.7 if request.end else 0.12):
                self._engine.release(name)
                del self._present[name]
                if not request.end and self._random.random() < 0.7:
                    self._preempted.append(request)
        arrivals: list[Prepared] = []
        while len(self._present) < self._resident and (
            not self._present or self._random.random() < self._arrival_probability
        ):
            request = self._next()
            name = request.request.id
            self._present[name] = request
            arrivals.append(self._engine.prepare(request.request, b"".join(request.frames), None))
        if arrivals:
            self._engine.admit(arrivals)
        return {each.request.id for each in arrivals}

    def _next(self) -> ReferenceRequest:
        """Returns a new request, or a preempted one."""
        if self._preempted and self._random.random() < 0.7:
            # Its last steps were not read, so the engine must generate their frames again.
            self.resumed += 1
            before = self._preempted.pop()
            resumed = msgspec.structs.replace(before)
            self.all[self.all.index(before)] = resumed
            return resumed
        number = len(self.all)
        request = small_talker.request(
            f"request {number}",
            " ".join(self._random.choices(["Yes", "no", "Hello", "there", "it's late"], k=self._random.randint(1, 3))),
            voice=self._random.choice(self._reference.voices),
            non_streaming_text=self._random.random() < 0.5,
            sampling=SAMPLINGS[number % len(SAMPLINGS)],
            seed=self._random.randrange(-(1 << 63), 1 << 64),
            max_frames=self._random.randint(1, self._max_frames),
        )
        self.all.append(self._reference.start(request))
        return self.all[-1]

    def _read(self) -> None:
        step, launched = self._unread.pop(0)
        results = self._engine.read(step)
        assert results.keys() <= launched.keys()
        compared: list[tuple[ReferenceRequest, bytes | End]] = []
        for name, request in launched.items():
            # A request that was released since has no result, even if it was admitted again.
            if self._present.get(name) is not request:
                continue
            result = results.get(name)
            # Only a request that ended in the previous step, and was launched once more, has no result.
            assert (result is None) == (request.end is not None), (name, result, request.end)
            if result == End(EndReason.LENGTH):
                assert len(request.frames) == request.request.max_frames
                request.end = End(EndReason.LENGTH)
            elif result is not None:
                assert isinstance(result, bytes) or result == End(EndReason.STOP)
                assert len(request.frames) < request.request.max_frames
                compared.append((request, result))
        if compared:
            rows, found = zip(*compared, strict=True)
            self.errors += self._reference.errors(rows, found)


@torch.inference_mode()
def poison(engine: CudaTalkerEngine) -> None:
    """Fills all memory with NaN that neither the weights nor a resident request needs between steps."""
    runner, allocator = engine.runner, engine.allocator
    following = (runner.next_staging + 1) % len(runner.staging)
    runner.staging_free[following]()
    # The next step's metadata is staged over a row that points to another request's memory.
    runner.staging[following] = 1
    state = runner.state
    slots, pages = ([0, *pool._free] for pool in (allocator.slots, allocator.pages))
    with runner.recorder.on_stream():
        state.hidden[slots] = torch.nan
        state.sampling_params[slots] = torch.nan
        state.seen[slots] = 1
        state.cache[:, pages] = torch.nan
        state.workspace.partial_sums.fill_(torch.nan)
        for frame, *_ in runner.frames.values():
            sampler = frame.code_sampler
            poison_buffers(frame, frame.talker, sampler, sampler.pair, sampler.single)
        for prefill, _ in runner.prefills.values():
            poison_buffers(prefill, prefill.layers)


def poison_buffers(*parts: object) -> None:
    """Fills the floating-point buffers of a step's parts with NaN."""
    for part in parts:
        for value in vars(part).values():
            if isinstance(value, Tensor) and value.is_floating_point():
                value.fill_(torch.nan)
