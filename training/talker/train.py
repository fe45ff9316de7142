"""Trains talker and code predictor on rounds of codes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from msgspec.structs import replace

from syrinx_stages.model.config import ModelConfig
from syrinx_stages.model.talker import Talker
from syrinx_stages.model.tokenizer import Tokenizer, load_tokenizer
from training.checkpoint import model_config
from training.config import TalkerTrainingConfig, TrainingConfig
from training.data.codes import LoadRound
from training.data.corpus import Sentence
from training.data.layout import Batch, BatchBuilder, PackedStep, Utterances, epoch_steps
from training.data.references import choose_references, join_utterances
from training.data.synthesis import Shard
from training.run import Log, ShouldStop, TrainingRun, seeded_generator
from training.talker import forward as talker_forward

_VALIDATION_ROWS = 16


class Trainer:
    """The talker with its tokenizer, batch builder and training run."""

    def __init__(self, config: TrainingConfig, directory: Path, device: torch.device) -> None:
        """directory: contains the tokenizer and the state."""
        self.config, self.training, self.device = config, config.talker, device
        self.model_config = model_config(config, directory / "tokenizer")
        self.tokenizer = load_tokenizer(directory / "tokenizer", self.model_config)
        self.talker = Talker(self.model_config.talker_config)
        # Initialized on the CPU, so that the weights do not depend on the device.
        talker_forward.initialize(self.talker, seeded_generator(torch.device("cpu"), config.talker.seed))
        self.talker.to(device)
        self.batches = self._batch_builder(config.talker)
        self.run = TrainingRun(
            directory / "talker.pt",
            {"talker": self.talker},
            self.talker.parameters(),
            peak_learning_rate=config.talker.learning_rate,
            steps=config.talker.steps,
            betas=(0.9, 0.97),
            weight_decay=0.05,
        )
        is_cuda = device.type == "cuda"
        self._autocast = torch.autocast(device.type, torch.bfloat16, enabled=is_cuda)
        self._dtype = torch.bfloat16 if is_cuda else torch.float32
        self._compiled = torch.compile(talker_forward.losses) if config.compile and is_cuda else talker_forward.losses

    def _batch_builder(self, training: TalkerTrainingConfig) -> BatchBuilder:
        newline = self.tokenizer.encode("\n")[0]
        return BatchBuilder(self.model_config, newline, training, self.device)

    def losses(self, batch: Batch, *, compiled: bool = True) -> talker_forward.TalkerLosses:
        """Returns a batch's losses. compiled: for batches of the training shape only."""
        compute = self._compiled if compiled else talker_forward.losses
        with self._autocast:
            inputs = talker_forward.embed(self.talker, batch, self._dtype)
            losses: talker_forward.TalkerLosses = compute(self.talker, inputs, batch)
            return losses

    def train(self, sentences: list[Sentence], load_round: LoadRound, should_stop: ShouldStop, log: Log) -> bool:
        """Trains until all steps are done or `should_stop` returns True, then validates; True if all are done."""
        dataset = Dataset(self.config, self.model_config, self.tokenizer, sentences, load_round, self.device)
        steps = self._steps(dataset)

        def step_losses(step: int) -> talker_forward.TalkerLosses:
            data, placed = next(steps)
            generator = seeded_generator(self.device, self.training.seed, step)
            return self.losses(self.batches.build(data, placed, generator))

        finished = self.run.train(step_losses, self.config, should_stop, log)
        for name, value in self.validate(dataset.validation()).items():
            log(f"talker: validation: {name} {value:.3f}")
        return finished

    def _steps(self, dataset: Dataset) -> Iterator[tuple[Utterances, PackedStep]]:
        """Yields the data of all steps from the run's next one on; a resumed epoch skips the steps already done."""
        run = self.run
        while True:
            epoch, first = run.data_position.get("epoch", 0), run.data_position.get("first", 0)
            data = dataset.training(first)
            step = first
            for placed in epoch_steps(data, self.training, epoch):
                if step >= run.step:
                    yield data, placed
                step += 1
            if step == first:
                raise ValueError("the utterances do not fill a step: use fewer rows or a larger corpus")
            run.data_position = {"epoch": epoch + 1, "first": step}

    @torch.no_grad()
    def validate(self, data: Utterances) -> dict[str, float]:
        """Returns the loss of code 0 on validation sentences, with their own text and with another sentence's.

        The two must differ widely: a talker that does not need the text babbles in free-running generation. So must,
        for voice cloning, the loss with the reference of another utterance, which mostly has another speaker.
        """
        other_text = data._replace(first_token=data.first_token.roll(1), token_counts=data.token_counts.roll(1))
        cases = [(data, ""), (other_text, " of another sentence")]
        if self.config.cloning is not None:
            cases.append((data._replace(references=data.references.roll(1, 0)), " with another reference"))
        return {
            f"{name} text{suffix}": self._validation_loss(utterances, streaming)
            for utterances, suffix in cases
            for name, streaming in (("whole", 0.0), ("streaming", 1.0))
        }

    def _validation_loss(self, data: Utterances, streaming_share: float) -> float:
        training = replace(
            self.training, rows=_VALIDATION_ROWS, streaming_share=streaming_share, auto_language_share=0.0
        )
        batches = self._batch_builder(training)
        losses = [
            float(self.losses(batches.build(data, placed, None), compiled=False).code0)
            for placed in epoch_steps(data, training, 0, keep_partial=True)
        ]
        return float(np.mean(losses))


@dataclass
class Dataset:
    """The utterances of the rounds that have joined the training data, on the device."""

    config: TrainingConfig
    model: ModelConfig
    tokenizer: Tokenizer
    sentences: list[Sentence]
    """The corpus."""
    load_round: LoadRound
    device: torch.device
    _rounds: list[Shard] = field(default_factory=list)
    _tokens: dict[int, np.ndarray] = field(default_factory=dict)
    """Token ids of the sentences used so far."""
    _training: Utterances | None = None

    def training(self, step: int) -> Utterances:
        """Returns the training data of an epoch that starts at `step`."""
        settings = self.config.talker
        count = min(self.config.synthesis.rounds, 1 + step // settings.steps_per_round)
        if self._training is None or count > len(self._rounds):
            data = self.utterances(count)
            sentences = np.concatenate([each.sentences for each in self._rounds])
            held_out = self._rounds[0].sentences[: settings.validation_sentences]
            self._training = _select(data, np.flatnonzero(~np.isin(sentences, held_out)))
            if (cloning := self.config.cloning) is not None:
                speakers = np.concatenate([each.speakers for each in self._rounds])[~np.isin(sentences, held_out)]
                self._training = join_utterances(self._training, speakers, cloning)
        return self._training

    def validation(self) -> Utterances:
        """Returns round 0's first utterances, whose sentences are excluded from training for all speakers."""
        return _select(self.utterances(1), np.arange(self.config.talker.validation_sentences))

    def utterances(self, count: int) -> Utterances:
        """Returns all utterances of the first `count` rounds."""
        self._rounds += [self.load_round(number) for number in range(len(self._rounds), count)]
        rounds, talker = self._rounds[:count], self.model.talker_config
        lines = [line for each in rounds for line in each.sentences.tolist()]
        for line in lines:
            if line not in self._tokens:
                self._tokens[line] = np.array(self.tokenizer.encode(self.sentences[line].text), np.int16)
        texts = [self._tokens[line] for line in lines]
        frames = np.concatenate([each.frames for each in rounds]).astype(np.int64)
        tokens = np.array([len(ids) for ids in texts])
        ids = np.array([talker.speakers.get(name, -1) for name in self.config.synthesis.speakers])
        speakers = np.concatenate([each.speakers for each in rounds])
        references = np.zeros((len(frames), 0), np.int64)
        if (cloning := self.config.cloning) is not None:
            references = choose_references(speakers, frames >= cloning.min_reference_frames, cloning.seed)
        columns = {
            "codes": np.concatenate([each.content for each in rounds]),
            "first_frame": np.cumsum(frames) - frames,
            "frames": frames,
            "tokens": np.concatenate(texts),
            "first_token": np.cumsum(tokens) - tokens,
            "token_counts": tokens,
            "speakers": ids[speakers],
            "references": references,
            "embeddings": np.concatenate([each.embeddings for each in rounds]),
            "languages": np.array([talker.codec_language_id[self.sentences[line].language] for line in lines]),
        }
        return Utterances(**{name: torch.from_numpy(column).to(self.device) for name, column in columns.items()})


def _select(data: Utterances, indices: np.ndarray) -> Utterances:
    index = torch.from_numpy(indices).to(data.codes.device)
    names = ("first_frame", "frames", "first_token", "token_counts", "speakers", "languages", "references")
    return data._replace(**{name: getattr(data, name)[index] for name in names})
