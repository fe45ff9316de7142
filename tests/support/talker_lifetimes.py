"""A talker engine under requests that come, go and share steps, beside the float32 modules of `model/`.

The modules are made to say what the engine said. So each code is compared with what they would have drawn at that
place with the same random number, and a difference is not the end of the comparison.
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
from syrinx_stages.model.kv_cache import KVCache
from syrinx_stages.model.prompt import Prompt
from syrinx_stages.model.sampling import Sampler, uniforms
from syrinx_stages.model.talker import Talker
from syrinx_stages.talker.allocation import PAGE_SIZE
from syrinx_stages.talker.prompter import Prompter

if TYPE_CHECKING:
    # On a machine without a GPU whoever imports the kernels first decides that they are interpreted.
    from syrinx_stages.talker.cuda_engine import CudaTalkerEngine
    from syrinx_stages.talker.engine import Prepared, TalkerEngine

CPU = torch.device("cpu")
SAMPLINGS = (
    Sampling(top_k=0, residual_top_k=0, min_frames=0),
    Sampling(temperature=1.1, top_k=20, repetition_penalty=1.4, residual_top_k=25, min_frames=4),
    Sampling(temperature=0.7, top_k=0, top_p=0.9, residual_temperature=1.2, residual_top_p=0.95),
    Sampling(temperature=0.0, residual_temperature=0.0, repetition_penalty=1.2),
)


class Alone(msgspec.Struct):
    """One request in the modules: what it has said, and what its next code is drawn from."""

    request: SpeechRequest
    prompt: Prompt
    cache: KVCache
    hidden: Tensor
    seen: Tensor
    """[1, vocabulary] bool."""
    sampler: Sampler
    frames: list[bytes] = []
    end: End | None = None


class Reference:
    """The modules in float32: they draw as `EagerTalkerEngine` does."""

    def __init__(self, checkpoint: Checkpoint, talker: Talker | None = None) -> None:
        """`talker`: where it is not the checkpoint's own, in float32."""
        self.talker = talker or checkpoint.load_talker()
        self._prompter = Prompter(checkpoint, self.talker)

    @property
    def voices(self) -> list[str]:
        """The checkpoint's."""
        return sorted(self.talker.config.speakers)

    @torch.inference_mode()
    def begin(self, request: SpeechRequest) -> Alone:
        """Prefills a request."""
        talker, config = self.talker, self.talker.config
        prompt, cache = self._prompter.build(request, None)[0], talker.new_cache()
        return Alone(
            request=request,
            prompt=prompt,
            cache=cache,
            hidden=talker.prefill(prompt.embeds, cache),
            seen=torch.zeros(1, config.vocab_size, dtype=torch.bool),
            sampler=Sampler([request.sampling], [request.seed], config, CPU),
        )

    @torch.inference_mode()
    def misses(self, rows: Sequence[Alone], said: Sequence[bytes | End]) -> list[float]:
        """How wrong each row's next frame, or its EOS, is; the rows have said it then.

        Of a frame, the code that is furthest from what would have been drawn: by how much of the probability the random
        number misses the code's share. 0 is a frame of the codes that the modules draw.
        """
        talker = self.talker
        eos = talker.config.codec_eos_token_id
        frames = np.array([_codes(item, eos) for item in said], np.int64)
        assert frames.min() >= 0
        assert frames[:, 0].max() < talker.config.vocab_size
        assert frames[:, 1:].max() < talker.config.codebook_size
        codes = torch.from_numpy(frames).to(talker.device)
        hidden = torch.stack([row.hidden for row in rows])
        misses = np.zeros((len(rows), CODE_GROUPS))
        for index, (row, logits) in enumerate(zip(rows, talker.logits(hidden).cpu(), strict=True)):
            scores = row.sampler.code0_scores(logits[None], row.seen, torch.tensor([len(row.frames)]))
            misses[index, 0] = _miss(row, scores, 0, int(frames[index, 0]))

        def forced(scores: Tensor, group: int) -> Tensor:
            for index, (row, own) in enumerate(zip(rows, scores.cpu(), strict=True)):
                misses[index, group] = _miss(row, own[None], group, int(frames[index, group]))
            return codes[:, group]

        talker.predict(hidden, codes[:, 0], forced)
        texts = torch.stack([row.prompt.text_row(len(row.frames)) for row in rows])
        hidden = talker.decode(talker.embed_frame(codes) + texts, [row.cache for row in rows])
        for row, item, state, code in zip(rows, said, hidden, frames[:, 0], strict=True):
            if isinstance(item, End):
                row.end = item
            else:
                row.frames.append(item)
                row.hidden = state
                row.seen[0, code] = True
        ends = [isinstance(item, End) for item in said]
        return [float(row[0] if end else row.max()) for row, end in zip(misses, ends, strict=True)]


def _codes(said: bytes | End, eos: int) -> np.ndarray:
    return np.array([eos] + [0] * (CODE_GROUPS - 1)) if isinstance(said, End) else np.frombuffer(said, "<i2")


def _miss(row: Alone, scores: Tensor, group: int, code: int) -> float:
    """By how much a row's number misses the share of a code; at temperature 0, how much likelier the best one is."""
    sampling, sampler = row.request.sampling, row.sampler
    if (sampling.residual_temperature if group else sampling.temperature) == 0:
        shares = scores.double().softmax(-1)[0]
        return float(shares.max() - shares[code])
    shares = (sampler.residual_filter if group else sampler.code0_filter).filter(scores).double().softmax(-1)[0]
    number = float(uniforms(sampler.seeds, torch.tensor([len(row.frames)]))[0, group])
    above = float(shares[: code + 1].sum())
    return max(0.0, above - float(shares[code]) - number, number - above)


class Lifetimes:
    """Drives an engine with two steps in flight; `errors` has how wrong each frame was (see `Reference.misses`)."""

    def __init__(
        self,
        reference: Reference,
        engine: TalkerEngine[Any],
        resident: int,
        *,
        seed: int = 0,
        most_frames: int = 5,
        arrivals: float = 0.8,
        between: Callable[[], None] = lambda: None,
        launched: Callable[[Any], None] = lambda step: None,
    ) -> None:
        """arrivals: how likely one more comes while there is room. between: called before every launch; launched:
        with what it returns.
        """
        self._reference, self._engine, self._resident = reference, engine, resident
        self._launched = launched
        self._between, self._most_frames, self._arrivals = between, most_frames, arrivals
        self._random = random.Random(seed)
        self._present: dict[str, Alone] = {}
        self._handed_over: list[Alone] = []
        self._unread: list[tuple[Any, dict[str, Alone]]] = []
        self.all: list[Alone] = []
        """Every request, with what it said."""
        self.resumed = 0
        """How often one went on in another place."""
        self.errors: list[float] = []

    def run(self, steps: int) -> None:
        """Steps of most of those that are there."""
        for _ in range(steps):
            self._come_and_go()
            names = sorted(self._present)
            self._random.shuffle(names)
            if len(names) > 1 and self._random.random() < 0.2:
                names.pop()
            self._between()
            step = self._engine.launch(names)
            self._launched(step)
            self._unread.append((step, {name: self._present[name] for name in names}))
            if len(self._unread) == 2:
                self._read()
        while self._unread:
            self._read()
        for name in list(self._present):
            self._engine.release(name)
        self._present.clear()

    def _come_and_go(self) -> None:
        """Places are used again while steps with their last request are unread; some requests go on elsewhere."""
        for name, alone in list(self._present.items()):
            if self._random.random() < (0.7 if alone.end else 0.12):
                self._engine.release(name)
                del self._present[name]
                if not alone.end and self._random.random() < 0.7:
                    self._handed_over.append(alone)
        come: list[Prepared] = []
        while len(self._present) < self._resident and (not self._present or self._random.random() < self._arrivals):
            alone = self._next()
            name = alone.request.id
            self._present[name] = alone
            come.append(self._engine.prepare(alone.request, b"".join(alone.frames), None))
        if come:
            self._engine.admit(come)

    def _next(self) -> Alone:
        """A new request, or one that was somewhere else."""
        if self._handed_over and self._random.random() < 0.7:
            # What its last steps would have said was not read: it says that again.
            self.resumed += 1
            before = self._handed_over.pop()
            alone = msgspec.structs.replace(before)
            self.all[self.all.index(before)] = alone
            return alone
        number = len(self.all)
        request = small_talker.request(
            f"request {number}",
            " ".join(self._random.choices(["Yes", "no", "Hello", "there", "it's late"], k=self._random.randint(1, 3))),
            voice=self._random.choice(self._reference.voices),
            non_streaming_text=self._random.random() < 0.5,
            sampling=SAMPLINGS[number % len(SAMPLINGS)],
            seed=self._random.randrange(-(1 << 63), 1 << 64),
            max_frames=self._random.randint(1, self._most_frames),
        )
        self.all.append(self._reference.begin(request))
        return self.all[-1]

    def _read(self) -> None:
        step, launched = self._unread.pop(0)
        results = self._engine.read(step)
        assert results.keys() <= launched.keys()
        heard: list[tuple[Alone, bytes | End]] = []
        for name, alone in launched.items():
            # What was released since is not asked for, even if it is there again.
            if self._present.get(name) is not alone:
                continue
            result = results.get(name)
            # One that ended in the step before was launched once more, and only such a one says nothing.
            assert (result is None) == (alone.end is not None), (name, result, alone.end)
            if result == End(EndReason.LENGTH):
                assert len(alone.frames) == alone.request.max_frames
                alone.end = End(EndReason.LENGTH)
            elif result is not None:
                assert isinstance(result, bytes) or result == End(EndReason.STOP)
                assert len(alone.frames) < alone.request.max_frames
                heard.append((alone, result))
        if heard:
            rows, said = zip(*heard, strict=True)
            self.errors += self._reference.misses(rows, said)


@torch.inference_mode()
def poison(engine: CudaTalkerEngine) -> None:
    """Makes everything no number that no request that is there, and no weight, needs from one step to the next."""
    # What the next step is told is written over places of somebody.
    following = (engine._stage + 1) % len(engine._staged)
    engine._staged_free[following]()
    engine._staged[following] = 1
    arena = engine._arena
    slots, pages, texts = ([0, *pool._free] for pool in (engine._slots, engine._pages, engine._text_pages))
    rows = arena.texts.view(len(arena.texts) // PAGE_SIZE, PAGE_SIZE, -1)
    with engine._recorder.on_stream():
        arena.state[slots] = torch.nan
        arena.sampling_params[slots] = torch.nan
        arena.seen[slots] = 1
        arena.cache[:, pages] = torch.nan
        rows[texts[1:]] = torch.nan
        rows[0, 1:] = torch.nan
        arena.sharing.parts.fill_(torch.nan)
        for frame, *_ in engine._frames.values():
            poison_buffers(frame, frame._talker, frame.draws, frame.draws._pair, frame.draws._single)
        for prefill, _ in engine._prefills.values():
            poison_buffers(prefill, prefill._stack)


def poison_buffers(*parts: object) -> None:
    """Makes the numbers none that parts of a step keep for themselves."""
    for part in parts:
        for value in vars(part).values():
            if isinstance(value, Tensor) and value.is_floating_point():
                value.fill_(torch.nan)
