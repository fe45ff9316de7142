"""Trains talker and code predictor on rounds of codes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from msgspec.structs import replace

from syrinx_stages.model.config import ModelConfig
from syrinx_stages.model.talker import Talker
from syrinx_stages.model.tokenizer import Tokenizer, load_tokenizer

from . import forward
from .codes import Coded
from .config import TalkerTraining, TrainingConfig
from .layout import Batch, Epoch, Layout, Marks, Placed, Utterances, noise_of
from .run import Deadline, Run, Say, generator
from .sentence import Sentence
from .shapes import model_config

STATE = "talker.pt"

Tokens = npt.NDArray[np.int16]

Rounds = Callable[[int], Coded]
"""Gives the codes of a round, waiting for them if need be."""


def build(config: ModelConfig, training: TalkerTraining, device: torch.device) -> Talker:
    """An untrained talker; the same for the same seed, whatever the device."""
    talker = Talker(config.talker_config)
    forward.initialise(talker, generator(torch.device("cpu"), training.seed))
    return talker.to(device)


class Learner:
    """The talker, and what it takes to learn: all a step needs but its data."""

    def __init__(
        self, config: TrainingConfig, directory: Path, device: torch.device, fit: Deadline | None = None
    ) -> None:
        """directory: where tokenizer and state are; fit: when to be finished, else the config says after which step."""
        self.config, self.training, self.device = config, config.talker, device
        self.model_config = model_config(config, directory / "tokenizer")
        self.tokenizer = load_tokenizer(directory / "tokenizer", self.model_config)
        self.talker = build(self.model_config, config.talker, device)
        newline = self.tokenizer.encode("\n")[0]
        self.marks = Marks(self.model_config, newline, device)
        self.layout = Layout(self.marks, config.talker, config.codec.codebook_size)
        training = config.talker
        self.run = Run(
            directory / STATE,
            {"talker": self.talker},
            self.talker.parameters(),
            peak=training.learning_rate,
            steps=training.steps,
            betas=(0.9, 0.97),
            decay=0.05,
            fit=fit,
        )
        self.run.resume()
        graphics = device.type == "cuda"
        self._half = torch.autocast(device.type, torch.bfloat16, enabled=graphics)
        self._kind = torch.bfloat16 if graphics else torch.float32
        self._compiled = torch.compile(forward.losses) if config.compile and graphics else forward.losses

    def losses(self, batch: Batch, *, compiled: bool = True) -> forward.Losses:
        """Of a step. `compiled` is for steps of training alone, whose shapes are always the same."""
        compute = self._compiled if compiled else forward.losses
        with self._half:
            inputs = forward.embed(self.talker, batch, self._kind)
            found: forward.Losses = compute(self.talker, inputs, batch)
            return found


class Texts:
    """The corpus as token ids; a sentence is encoded when it is first asked for."""

    def __init__(self, sentences: list[Sentence], tokenizer: Tokenizer) -> None:
        self.sentences, self._tokenizer = sentences, tokenizer
        self._ids: dict[int, Tokens] = {}

    def __getitem__(self, line: int) -> Tokens:
        if line not in self._ids:
            self._ids[line] = np.array(self._tokenizer.encode(self.sentences[line].text), np.int16)
        return self._ids[line]


def utterances(
    rounds: list[Coded], texts: Texts, speakers: list[int], languages: dict[str, int], device: torch.device
) -> Utterances:
    """Rounds of codes and their texts, on the device.

    speakers: the talker's id of each of the config's; languages: its id of each name.
    """
    lines = [line for each in rounds for line in each.sentences.tolist()]
    said = [texts[line] for line in lines]
    frames = np.concatenate([each.frames for each in rounds]).astype(np.int64)
    tokens = np.array([len(ids) for ids in said])
    columns = {
        "codes": np.concatenate([each.codes for each in rounds]),
        "first_frame": np.cumsum(frames) - frames,
        "frames": frames,
        "tokens": np.concatenate(said),
        "first_token": np.cumsum(tokens) - tokens,
        "tokens_each": tokens,
        "speakers": np.array(speakers)[np.concatenate([each.speakers for each in rounds])],
        "languages": np.array([languages[texts.sentences[line].language] for line in lines]),
    }
    return Utterances(**{name: torch.from_numpy(column).to(device) for name, column in columns.items()})


def part(data: Utterances, which: np.ndarray) -> Utterances:
    """Some of the utterances, by number."""
    index = torch.from_numpy(which).to(data.codes.device)
    fields = ("first_frame", "frames", "first_token", "tokens_each", "speakers", "languages")
    return data._replace(**{field: getattr(data, field)[index] for field in fields})


class _Data:
    """The utterances of an epoch: those of the rounds that have joined by its first step."""

    def __init__(self, learner: Learner, sentences: list[Sentence], rounds: Rounds) -> None:
        self._learner, self._rounds = learner, rounds
        self._texts = Texts(sentences, learner.tokenizer)
        self._joined: list[Coded] = []
        self._kept: Utterances | None = None

    def at(self, step: int) -> Utterances:
        """What an epoch that begins with `step` goes through."""
        config = self._learner.config
        count = min(config.synthesis.rounds, 1 + step // config.talker.steps_a_round)
        if self._kept is None or count > len(self._joined):
            self._joined += [self._rounds(number) for number in range(len(self._joined), count)]
            read = np.concatenate([each.sentences for each in self._joined])
            self._kept = part(self._all(), np.flatnonzero(~np.isin(read, self._held())))
        return self._kept

    def validation(self) -> Utterances:
        """Round 0's first sentences, which are not learnt from, whoever reads them."""
        self.at(0)
        return part(self._all(), np.arange(self._learner.training.validation_sentences))

    def _held(self) -> np.ndarray:
        return self._joined[0].sentences[: self._learner.training.validation_sentences]

    def _all(self) -> Utterances:
        talker = self._learner.model_config.talker_config
        speakers = [talker.speakers[name] for name in self._learner.config.synthesis.speakers]
        return utterances(self._joined, self._texts, speakers, talker.codec_language_id, self._learner.device)


def _steps(learner: Learner, data: _Data) -> Iterator[tuple[Utterances, Placed]]:
    """From the run's next step on; an epoch that was begun is counted through to where it was left."""
    run = learner.run
    while True:
        epoch, first = run.place.get("epoch", 0), run.place.get("first", 0)
        kept = data.at(first)
        step = first
        for placed in Epoch(kept, learner.training, epoch):
            if step >= run.step:
                yield kept, placed
            step += 1
        if step == first:
            raise ValueError("the utterances do not fill a step: fewer rows, or a larger corpus")
        run.place = {"epoch": epoch + 1, "first": step}


def train(learner: Learner, sentences: list[Sentence], rounds: Rounds, deadline: Deadline, say: Say) -> bool:
    """Trains until all steps are done or the time is over; says whether all are."""
    config, run = learner.config, learner.run
    data = _Data(learner, sentences, rounds)
    steps = _steps(learner, data)
    while not run.finished and deadline.left() > 0:
        kept, placed = next(steps)
        found = learner.losses(learner.layout.build(kept, placed, noise_of(learner.training, run.step, learner.device)))
        run.learn(found.code0 + found.rest)
        if run.step % config.log_every == 0:
            run.note(say, **found._asdict())
        if run.step % config.save_every == 0:
            run.save()
    run.save()
    for name, value in validate(learner, data.validation()).items():
        say(f"talker: validation: {name} {value:.3f}")
    return run.finished


_VALIDATION_ROWS = 16


class _Case(NamedTuple):
    """What validation asks."""

    streaming: bool
    wrong_text: bool


_CASES = {
    "whole text": _Case(False, False),
    "streaming text": _Case(True, False),
    "whole text of another sentence": _Case(False, True),
    "streaming text of another sentence": _Case(True, True),
}


@torch.no_grad()
def validate(learner: Learner, data: Utterances) -> dict[str, float]:
    """The loss of code 0 on sentences that were not learnt from, with their text and with another's.

    The two must differ widely: a talker that does not need the text babbles when it speaks by itself.
    """
    return {name: _validation_loss(learner, data, case) for name, case in _CASES.items()}


def _validation_loss(learner: Learner, data: Utterances, case: _Case) -> float:
    if case.wrong_text:
        data = data._replace(first_token=data.first_token.roll(1), tokens_each=data.tokens_each.roll(1))
    training = replace(
        learner.training, rows=_VALIDATION_ROWS, streaming_share=1.0 if case.streaming else 0.0, auto_share=0.0
    )
    layout = Layout(learner.marks, training, learner.config.codec.codebook_size)
    found = [
        float(learner.losses(layout.build(data, placed, None), compiled=False).code0)
        for placed in Epoch(data, training, 0, all_of_them=True)
    ]
    return float(np.mean(found))
