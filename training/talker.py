"""Trains talker and code predictor on rounds of codes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from msgspec.structs import replace

from syrinx_stages.model.config import ModelConfig
from syrinx_stages.model.talker import Talker
from syrinx_stages.model.tokenizer import Tokenizer, load_tokenizer

from . import talker_forward
from .checkpoint_config import model_config
from .codes import RoundCodes
from .config import TalkerTrainingConfig, TrainingConfig
from .corpus import Sentence
from .layout import Batch, BatchBuilder, Epoch, PackedStep, SpecialTokens, Utterances, step_generator
from .run import Deadline, Log, TrainingRun, seeded_generator

STATE = "talker.pt"
_VALIDATION_ROWS = 16

Tokens = npt.NDArray[np.int16]

LoadRound = Callable[[int], RoundCodes]
"""Returns the codes of a round, waiting for them if necessary."""


def build(config: ModelConfig, training: TalkerTrainingConfig, device: torch.device) -> Talker:
    """Returns an untrained talker, which depends on the seed but not on the device."""
    talker = Talker(config.talker_config)
    talker_forward.initialize(talker, seeded_generator(torch.device("cpu"), training.seed))
    return talker.to(device)


class Trainer:
    """The talker with its tokenizer, batch builder and training run."""

    def __init__(
        self, config: TrainingConfig, directory: Path, device: torch.device, finish_by: Deadline | None = None
    ) -> None:
        """directory: contains the tokenizer and the state. finish_by: fits the number of steps to this time."""
        self.config, self.training, self.device = config, config.talker, device
        self.model_config = model_config(config, directory / "tokenizer")
        self.tokenizer = load_tokenizer(directory / "tokenizer", self.model_config)
        self.talker = build(self.model_config, config.talker, device)
        newline = self.tokenizer.encode("\n")[0]
        self.special_tokens = SpecialTokens(self.model_config, newline, device)
        self.batches = BatchBuilder(self.special_tokens, config.talker, config.codec.codebook_size)
        self.run = TrainingRun(
            directory / STATE,
            {"talker": self.talker},
            self.talker.parameters(),
            peak_learning_rate=config.talker.learning_rate,
            steps=config.talker.steps,
            betas=(0.9, 0.97),
            weight_decay=0.05,
            finish_by=finish_by,
        )
        self.run.resume()
        is_cuda = device.type == "cuda"
        self._autocast = torch.autocast(device.type, torch.bfloat16, enabled=is_cuda)
        self._dtype = torch.bfloat16 if is_cuda else torch.float32
        self._compiled = torch.compile(talker_forward.losses) if config.compile and is_cuda else talker_forward.losses

    def losses(self, batch: Batch, *, compiled: bool = True) -> talker_forward.TalkerLosses:
        """Returns a batch's losses. compiled: for batches of the training shape only."""
        compute = self._compiled if compiled else talker_forward.losses
        with self._autocast:
            inputs = talker_forward.embed(self.talker, batch, self._dtype)
            losses: talker_forward.TalkerLosses = compute(self.talker, inputs, batch)
            return losses


class TokenizedCorpus:
    """The corpus as token ids; sentences are tokenized at the first access."""

    def __init__(self, sentences: list[Sentence], tokenizer: Tokenizer) -> None:
        self.sentences, self._tokenizer = sentences, tokenizer
        self._ids: dict[int, Tokens] = {}

    def __getitem__(self, line: int) -> Tokens:
        if line not in self._ids:
            self._ids[line] = np.array(self._tokenizer.encode(self.sentences[line].text), np.int16)
        return self._ids[line]


def utterances(
    rounds: list[RoundCodes],
    corpus: TokenizedCorpus,
    speakers: list[int],
    languages: dict[str, int],
    device: torch.device,
) -> Utterances:
    """Returns the utterances of rounds, on the device.

    speakers: the talker's ids of the config's speakers, in order; languages: its id of each language.
    """
    lines = [line for each in rounds for line in each.sentences.tolist()]
    texts = [corpus[line] for line in lines]
    frames = np.concatenate([each.frames for each in rounds]).astype(np.int64)
    tokens = np.array([len(ids) for ids in texts])
    columns = {
        "codes": np.concatenate([each.codes for each in rounds]),
        "first_frame": np.cumsum(frames) - frames,
        "frames": frames,
        "tokens": np.concatenate(texts),
        "first_token": np.cumsum(tokens) - tokens,
        "token_counts": tokens,
        "speakers": np.array(speakers)[np.concatenate([each.speakers for each in rounds])],
        "languages": np.array([languages[corpus.sentences[line].language] for line in lines]),
    }
    return Utterances(**{name: torch.from_numpy(column).to(device) for name, column in columns.items()})


def select(data: Utterances, indices: np.ndarray) -> Utterances:
    """Returns the utterances at `indices`."""
    index = torch.from_numpy(indices).to(data.codes.device)
    fields = ("first_frame", "frames", "first_token", "token_counts", "speakers", "languages")
    return data._replace(**{field: getattr(data, field)[index] for field in fields})


class _Dataset:
    """The utterances of the rounds that have joined the training data."""

    def __init__(self, trainer: Trainer, sentences: list[Sentence], load_round: LoadRound) -> None:
        self._trainer, self._load_round = trainer, load_round
        self._corpus = TokenizedCorpus(sentences, trainer.tokenizer)
        self._rounds: list[RoundCodes] = []
        self._training: Utterances | None = None

    def training(self, step: int) -> Utterances:
        """Returns the training data of an epoch that starts at `step`."""
        config = self._trainer.config
        count = min(config.synthesis.rounds, 1 + step // config.talker.steps_per_round)
        if self._training is None or count > len(self._rounds):
            self._rounds += [self._load_round(number) for number in range(len(self._rounds), count)]
            sentences = np.concatenate([each.sentences for each in self._rounds])
            held_out = self._rounds[0].sentences[: config.talker.validation_sentences]
            self._training = select(self._all(), np.flatnonzero(~np.isin(sentences, held_out)))
        return self._training

    def validation(self) -> Utterances:
        """Returns round 0's first utterances, whose sentences are excluded from training for all speakers."""
        self.training(0)
        return select(self._all(), np.arange(self._trainer.training.validation_sentences))

    def _all(self) -> Utterances:
        talker = self._trainer.model_config.talker_config
        speakers = [talker.speakers[name] for name in self._trainer.config.synthesis.speakers]
        return utterances(self._rounds, self._corpus, speakers, talker.codec_language_id, self._trainer.device)


def _steps(trainer: Trainer, dataset: _Dataset) -> Iterator[tuple[Utterances, PackedStep]]:
    """Yields the data of all steps from the run's next one on; a resumed epoch skips the steps already done."""
    run = trainer.run
    while True:
        epoch, first = run.data_position.get("epoch", 0), run.data_position.get("first", 0)
        data = dataset.training(first)
        step = first
        for placed in Epoch(data, trainer.training, epoch):
            if step >= run.step:
                yield data, placed
            step += 1
        if step == first:
            raise ValueError("the utterances do not fill a step: use fewer rows or a larger corpus")
        run.data_position = {"epoch": epoch + 1, "first": step}


def train(trainer: Trainer, sentences: list[Sentence], load_round: LoadRound, deadline: Deadline, log: Log) -> bool:
    """Trains until all steps are done or `deadline` has passed, then validates; returns True if all steps are done."""
    config, run = trainer.config, trainer.run
    dataset = _Dataset(trainer, sentences, load_round)
    steps = _steps(trainer, dataset)
    while not run.finished and deadline.remaining() > 0:
        data, placed = next(steps)
        batch = trainer.batches.build(data, placed, step_generator(trainer.training, run.step, trainer.device))
        losses = trainer.losses(batch)
        run.update(losses.code0 + losses.rest)
        if run.step % config.log_every == 0:
            run.log_metrics(log, **losses._asdict())
        if run.step % config.save_every == 0:
            run.save()
    run.save()
    for name, value in validate(trainer, dataset.validation()).items():
        log(f"talker: validation: {name} {value:.3f}")
    return run.finished


@torch.no_grad()
def validate(trainer: Trainer, data: Utterances) -> dict[str, float]:
    """Returns the loss of code 0 on validation sentences, with their own text and with another sentence's.

    The two must differ widely: a talker that does not need the text babbles in free-running generation.
    """
    other_text = data._replace(first_token=data.first_token.roll(1), token_counts=data.token_counts.roll(1))
    return {
        "whole text": _validation_loss(trainer, data, streaming=False),
        "streaming text": _validation_loss(trainer, data, streaming=True),
        "whole text of another sentence": _validation_loss(trainer, other_text, streaming=False),
        "streaming text of another sentence": _validation_loss(trainer, other_text, streaming=True),
    }


def _validation_loss(trainer: Trainer, data: Utterances, *, streaming: bool) -> float:
    training = replace(
        trainer.training,
        rows=_VALIDATION_ROWS,
        streaming_share=1.0 if streaming else 0.0,
        auto_language_share=0.0,
    )
    batches = BatchBuilder(trainer.special_tokens, training, trainer.config.codec.codebook_size)
    losses = [
        float(trainer.losses(batches.build(data, placed, None), compiled=False).code0)
        for placed in Epoch(data, training, 0, keep_partial=True)
    ]
    return float(np.mean(losses))
