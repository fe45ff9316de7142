"""What the talker is shown in training: the positions of `model.prompt`'s layouts, many sentences packed into a row.

A sentence's positions are its prompt and then, teacher-forced, one for each of its frames:

    q        0 .. 2      the template's start
             3 .. B - 1  language, speaker and padding marks (B = 9, or 8 where the language is not told)
    whole    B ..        the text and its end mark, over codec padding; one position of codec's begin mark
    streamed B           the first text token over codec's begin mark; the rest of the text comes with the frames
             F ..        the frames

and each is labelled with code 0 of the frame that follows, the last one with the end of the sequence.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from syrinx_stages.model.config import CODE_GROUPS, ModelConfig

from .config import TalkerTraining
from .run import generator

_LANGUAGE, _SPEAKER = -1, -2
"""Among the marks: what each utterance has its own id of."""
IGNORED = -100
"""The label of positions that nothing is learnt from."""
_FILL = 0.97
"""Share of a step's positions that sentences are taken for: the last gaps would cost many tries."""

Integers = npt.NDArray[np.int64]


class Utterances(NamedTuple):
    """Everything that can be learnt from, on the device; of each utterance [U] where its parts are, and how many."""

    codes: Tensor
    """[frames of all, 16]."""
    first_frame: Tensor
    frames: Tensor
    tokens: Tensor
    """[text tokens of all]."""
    first_token: Tensor
    tokens_each: Tensor
    speakers: Tensor
    languages: Tensor
    """Ids of the talker's vocabulary, as the speakers."""


class Placed(NamedTuple):
    """The sentences of a step, in the order of their places: [sentences] each."""

    utterances: Tensor
    starts: Tensor
    """In the step's rows, one after the other."""
    streaming: Tensor
    automatic: Tensor
    """Language."""


class Batch(NamedTuple):
    """A step's positions, [rows, positions] each, and the frames whose codes 1 to 15 are learnt."""

    text: Tensor
    """Ids."""
    codec: Tensor
    """Ids of the talker's vocabulary; -1 where there is none."""
    frames: Tensor
    """[rows, positions, 16]: input codes."""
    is_frame: Tensor
    positions: Tensor
    """Within the sentence."""
    sentences: Tensor
    """Which of the step's a position belongs to; -1 for none."""
    labels: Tensor
    predicted: Tensor
    """[predicted]: positions, counted over all rows, that come before the predicted frames."""
    predicted_codes: Tensor
    """[predicted, 16]: the frames themselves."""
    predicted_inputs: Tensor
    """[predicted, 15]: the codes 0 to 14 that the predictor is fed."""
    predicted_weight: Tensor
    """[predicted]: 0 where a step has too few frames."""


def lengths(tokens: Integers, frames: Integers, streaming: Integers, automatic: Integers) -> Integers:
    """Positions of sentences, [sentences] each."""
    prompt = 9 - automatic + np.where(streaming == 1, 1, tokens + 2)
    total: Integers = prompt + frames
    return total


def pack(
    sizes: Sequence[int], order: Sequence[int], rows: int, width: int, *, all_of_them: bool = False
) -> Iterator[list[tuple[int, int]]]:
    """Steps of (start, sentence): each sentence as a whole in one of `rows` rows of `width` positions.

    sizes: positions of each sentence, at most `width`; order: the sentences. What does not fit waits for the next
    step; what does not fill the last step is left out, or in a step of its own.
    """
    waiting: list[int] = []
    filled = 0
    for sentence in order:
        waiting.append(sentence)
        filled += sizes[sentence]
        if filled >= _FILL * rows * width:
            placed, waiting = _place(sizes, waiting, rows, width)
            filled = sum(sizes[left] for left in waiting)
            yield placed
    while waiting and all_of_them:
        placed, waiting = _place(sizes, waiting, rows, width)
        yield placed


def _place(sizes: Sequence[int], waiting: list[int], rows: int, width: int) -> tuple[list[tuple[int, int]], list[int]]:
    """The longest first, each into the emptiest row."""
    room = [(-width, row) for row in range(rows)]
    placed, left = [], []
    for sentence in sorted(waiting, key=lambda each: -sizes[each]):
        free, row = room[0]
        if -free < sizes[sentence]:
            left.append(sentence)
            continue
        placed.append((row * width + width + free, sentence))
        heapq.heapreplace(room, (free + sizes[sentence], row))
    return sorted(placed), left


class Marks:
    """Ids of a checkpoint's marks, on a device."""

    def __init__(self, config: ModelConfig, newline: int, device: torch.device) -> None:
        talker = config.talker_config
        self.config, self.talker = config, talker
        self.role = torch.tensor([config.im_start_token_id, config.assistant_token_id, newline], device=device)
        begin, end, pad = talker.codec_think_bos_id, talker.codec_think_eos_id, talker.codec_pad_id
        told = [talker.codec_think_id, begin, _LANGUAGE, end, _SPEAKER, pad]
        untold = [talker.codec_nothink_id, begin, end, _SPEAKER, pad, pad]
        self.marks = torch.tensor([told, untold], device=device)
        """[told, not told; 6]: what stands at positions 3 to 8."""


class Layout:
    """Builds steps."""

    def __init__(self, marks: Marks, training: TalkerTraining, codes: int) -> None:
        """codes: values of a code."""
        self._marks, self._training, self._codes = marks, training, codes

    def build(self, data: Utterances, placed: Placed, draw: torch.Generator | None) -> Batch:
        """A step. Without `draw` nothing is random: codes are as they are, and the first frames are predicted."""
        training, device = self._training, data.codes.device
        flat = torch.arange(training.rows * training.row_positions, device=device)
        sentence = torch.searchsorted(placed.starts, flat, right=True) - 1
        which = sentence.clamp(min=0)
        own = placed.utterances[which]
        q = flat - placed.starts[which]
        automatic, streaming = placed.automatic[which].long(), placed.streaming[which]
        begin, tokens, frames = 9 - automatic, data.tokens_each[own], data.frames[own]
        first = torch.where(streaming, begin + 1, begin + tokens + 2)
        inside = (sentence >= 0) & (q < first + frames)

        is_frame = inside & (q >= first)
        follows = q - first + 1
        before_frame = inside & (follows >= 0) & (follows < frames)
        codes = self._frames_at(data, own, q - first, is_frame)
        next_codes = self._frames_at(data, own, follows, before_frame)
        labels = torch.where(before_frame, next_codes[:, 0], IGNORED)
        labels = torch.where(inside & (follows == frames), self._marks.talker.codec_eos_token_id, labels)
        predicted = self._predicted(before_frame, draw)
        wanted = next_codes[predicted]
        batch = Batch(
            text=self._text(data, own, q, begin, tokens, inside),
            codec=self._codec(data, own, q, begin, first, automatic, inside),
            frames=self._noisy_frames(codes, draw),
            is_frame=is_frame,
            positions=torch.where(inside, q, 0),
            sentences=torch.where(inside, sentence, -1),
            labels=labels,
            predicted=predicted,
            predicted_codes=wanted,
            predicted_inputs=self._noisy(wanted, training.code_noise, draw)[:, :-1],
            predicted_weight=before_frame[predicted].float(),
        )
        shape = (training.rows, training.row_positions)
        rows = {name: getattr(batch, name).view(*shape, *getattr(batch, name).shape[1:]) for name in _BY_POSITION}
        return batch._replace(**rows)

    def _frames_at(self, data: Utterances, own: Tensor, index: Tensor, there: Tensor) -> Tensor:
        """Frames [positions, 16] of `index` in each position's utterance; zeros where `there` is false."""
        place = torch.where(there, data.first_frame[own] + index, 0)
        return torch.where(there[:, None], data.codes[place].long(), 0)

    def _text(self, data: Utterances, own: Tensor, q: Tensor, begin: Tensor, count: Tensor, inside: Tensor) -> Tensor:
        config, index = self._marks.config, q - begin
        said = (index >= 0) & (index < count)
        place = torch.where(said & inside, data.first_token[own] + index, 0)
        text = torch.where(said & inside, data.tokens[place].long(), config.tts_pad_token_id)
        text = torch.where(index == count, config.tts_eos_token_id, text)
        text = torch.where(index == -1, config.tts_bos_token_id, text)
        return torch.where(q < len(self._marks.role), self._marks.role[q.clamp(0, 2)], text)

    def _codec(
        self, data: Utterances, own: Tensor, q: Tensor, begin: Tensor, first: Tensor, automatic: Tensor, inside: Tensor
    ) -> Tensor:
        talker = self._marks.talker
        mark = self._marks.marks[automatic, (q - 3).clamp(0, 5)]
        mark = torch.where(mark == _LANGUAGE, data.languages[own], mark)
        mark = torch.where(mark == _SPEAKER, data.speakers[own], mark)
        codec = torch.where((q >= 3) & (q < begin), mark, -1)
        codec = torch.where((q >= begin) & (q < first - 1), talker.codec_pad_id, codec)
        codec = torch.where(q == first - 1, talker.codec_bos_id, codec)
        return torch.where(inside, codec, -1)

    def _predicted(self, before_frame: Tensor, draw: torch.Generator | None) -> Tensor:
        """Positions before some frames, as many as are to be predicted."""
        priority = before_frame.float()
        if draw is not None:
            priority = priority * (1 + torch.rand(priority.shape, generator=draw, device=priority.device))
        count = min(self._training.predicted_frames, len(priority))
        return priority.topk(count).indices

    def _noisy(self, codes: Tensor, share: float, draw: torch.Generator | None) -> Tensor:
        """Codes [n, 16] of which a share of 1 to 15 are random."""
        if draw is None:
            return codes
        hit = torch.rand(codes.shape, generator=draw, device=codes.device) < share
        hit[:, 0] = False
        return torch.where(hit, self._random(codes, draw), codes)

    def _noisy_frames(self, codes: Tensor, draw: torch.Generator | None) -> Tensor:
        """Input frames [n, 16], some codes and some whole frames random: the talker has to live with its own errors."""
        if draw is None:
            return codes
        training = self._training
        chance = torch.full((CODE_GROUPS,), training.code_noise, device=codes.device)
        chance[0] = training.code0_noise
        hit = torch.rand(codes.shape, generator=draw, device=codes.device) < chance
        hit |= torch.rand((len(codes), 1), generator=draw, device=codes.device) < training.frame_noise
        return torch.where(hit, self._random(codes, draw), codes)

    def _random(self, codes: Tensor, draw: torch.Generator) -> Tensor:
        return torch.randint(self._codes, codes.shape, generator=draw, device=codes.device)


_BY_POSITION = ("text", "codec", "frames", "is_frame", "positions", "sentences", "labels")


class Epoch:
    """All utterances once, in an order and in layouts that follow from (seed, epoch)."""

    def __init__(self, data: Utterances, training: TalkerTraining, epoch: int, *, all_of_them: bool = False) -> None:
        """all_of_them: the last step too, though it is not full."""
        tokens, frames = data.tokens_each.cpu().numpy(), data.frames.cpu().numpy()
        rng = np.random.default_rng((training.seed, epoch))
        self._streaming = (rng.random(len(frames)) < training.streaming_share).astype(np.int64)
        self._automatic = (rng.random(len(frames)) < training.auto_share).astype(np.int64)
        sizes = lengths(tokens, frames, self._streaming, self._automatic)
        fitting = np.flatnonzero(sizes <= training.row_positions)
        order = fitting[rng.permutation(len(fitting))]
        self._steps = pack(
            sizes.tolist(), order.tolist(), training.rows, training.row_positions, all_of_them=all_of_them
        )
        self._device = data.codes.device

    def __iter__(self) -> Iterator[Placed]:
        """The steps."""
        for placed in self._steps:
            chosen = np.array([sentence for _, sentence in placed])
            starts = np.array([start for start, _ in placed])
            columns = (chosen, starts, self._streaming[chosen] == 1, self._automatic[chosen] == 1)
            yield Placed(*(torch.from_numpy(column).to(self._device) for column in columns))


def noise_of(training: TalkerTraining, step: int, device: torch.device) -> torch.Generator:
    """What is random in a step."""
    return generator(device, training.seed, step)
