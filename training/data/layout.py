"""The talker's training batches: sentences in the layouts of `talker.prompt`, packed into rows.

A sentence is its prompt followed by its frames (teacher forcing). Positions within a sentence:

    0 .. 2       the chat template's start
    3 .. B - 1   language, speaker and padding tokens (B = 9, or 8 without the language)
    whole text:      B .. the text and its end token over codec padding, then one position with codec's begin token
    streaming text:  B the first text token over codec's begin token; the others are added to the frames
    F ..         the frames

The label of a position is code 0 of the following frame; the label of the last frame is the end-of-sequence token.
"""

import heapq
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from syrinx_stages.model.config import CODE_GROUPS, ModelConfig
from training.config import TalkerTrainingConfig

_LANGUAGE, _SPEAKER = -1, -2
"""Placeholders in the prompt for each utterance's own language and speaker id."""
IGNORED = -100
"""The label of positions left out of the loss."""
_FILL = 0.97
"""Share of a step's positions to fill; filling the last gaps would need many more attempts."""

Integers = npt.NDArray[np.int64]


class Utterances(NamedTuple):
    """The training data, on the device. Fields are [utterances] unless noted otherwise."""

    codes: Tensor
    """[sum of frames, 16]."""
    first_frame: Tensor
    frames: Tensor
    tokens: Tensor
    """[sum of text tokens]."""
    first_token: Tensor
    token_counts: Tensor
    speakers: Tensor
    """Ids of the talker's vocabulary; -1 for voice cloning."""
    languages: Tensor
    """Ids of the talker's vocabulary."""
    references: Tensor
    """[utterances, choices]: rows of `embeddings` that can be an utterance's voice; 0 choices without cloning."""
    embeddings: Tensor
    """[rows, width]."""


class PackedStep(NamedTuple):
    """The sentences of a step, ordered by position; [sentences] each."""

    utterances: Tensor
    starts: Tensor
    """Positions of the sentences' starts in the concatenated rows."""
    streaming: Tensor
    """True for streaming text."""
    auto_language: Tensor
    """True if the prompt does not name the language."""


class Batch(NamedTuple):
    """A step's positions ([rows, positions] unless noted otherwise), and the frames whose codes 1 to 15 are trained."""

    text: Tensor
    """Text token ids."""
    codec: Tensor
    """Ids of the talker's vocabulary; -1 for none."""
    frames: Tensor
    """[rows, positions, 16]: input codes."""
    is_frame: Tensor
    positions: Tensor
    """Position within the sentence."""
    sentences: Tensor
    """Index of the position's sentence in the step; -1 for none."""
    voices: Tensor | None
    """[rows, positions, width]: speaker embeddings at the speaker's position, and zeros; None without cloning."""
    labels: Tensor
    predicted: Tensor
    """[predicted]: positions in the concatenated rows, each followed by a predicted frame."""
    predicted_codes: Tensor
    """[predicted, 16]: those frames."""
    predicted_inputs: Tensor
    """[predicted, 15]: codes 0 to 14, the predictor's inputs."""
    predicted_weight: Tensor
    """[predicted]: 1, or 0 for padding if the step has too few frames."""


def lengths(tokens: Integers, frames: Integers, streaming: Integers, auto_language: Integers) -> Integers:
    """Returns the number of positions of each sentence; all arrays are [sentences]."""
    total: Integers = 9 - auto_language + np.where(streaming == 1, 1, tokens + 2) + frames
    return total


def pack(
    sizes: Sequence[int], order: Sequence[int], rows: int, width: int, *, keep_partial: bool = False
) -> Iterator[list[tuple[int, int]]]:
    """Yields steps as lists of (start, sentence); each sentence lies within one of `rows` rows of `width` positions.

    sizes: positions of each sentence, at most `width`; order: the sentences to pack. A sentence that does not fit moves
    to the next step. keep_partial: also yields the last sentences, which do not fill a step.
    """
    waiting: list[int] = []
    filled = 0
    for sentence in order:
        waiting.append(sentence)
        filled += sizes[sentence]
        if filled >= _FILL * rows * width:
            placed, waiting = _pack_step(sizes, waiting, rows, width)
            filled = sum(sizes[left] for left in waiting)
            yield placed
    while waiting and keep_partial:
        placed, waiting = _pack_step(sizes, waiting, rows, width)
        yield placed


def _pack_step(
    sizes: Sequence[int], waiting: list[int], rows: int, width: int
) -> tuple[list[tuple[int, int]], list[int]]:
    """Puts the longest sentences first, each into the emptiest row; returns (start, sentence) pairs and the rest."""
    negative_space = [(-width, row) for row in range(rows)]
    placed, left = [], []
    for sentence in sorted(waiting, key=lambda each: -sizes[each]):
        space, row = negative_space[0]
        if -space < sizes[sentence]:
            left.append(sentence)
            continue
        placed.append((row * width + width + space, sentence))
        heapq.heapreplace(negative_space, (space + sizes[sentence], row))
    return sorted(placed), left


def epoch_steps(
    data: Utterances, training: TalkerTrainingConfig, epoch: int, *, keep_partial: bool = False
) -> Iterator[PackedStep]:
    """Yields all utterances once, in an order and in layouts that depend on (seed, epoch) alone.

    keep_partial: includes the last step, which is not full.
    """
    tokens, frames = data.token_counts.cpu().numpy(), data.frames.cpu().numpy()
    rng = np.random.default_rng((training.seed, epoch))
    streaming = (rng.random(len(frames)) < training.streaming_share).astype(np.int64)
    auto_language = (rng.random(len(frames)) < training.auto_language_share).astype(np.int64)
    sizes = lengths(tokens, frames, streaming, auto_language)
    fitting = np.flatnonzero(sizes <= training.row_positions)
    order = fitting[rng.permutation(len(fitting))]
    rows, width = training.rows, training.row_positions
    for placed in pack(sizes.tolist(), order.tolist(), rows, width, keep_partial=keep_partial):
        starts, chosen = np.array(placed).T
        columns = (chosen, starts, streaming[chosen] == 1, auto_language[chosen] == 1)
        yield PackedStep(*(torch.from_numpy(column.copy()).to(data.codes.device) for column in columns))


class BatchBuilder:
    """Builds batches from packed steps, on the device."""

    def __init__(self, config: ModelConfig, newline: int, training: TalkerTrainingConfig, device: torch.device) -> None:
        """newline: its token id."""
        talker = config.talker_config
        self._config, self._talker, self._training = config, talker, training
        self._role = torch.tensor([config.im_start_token_id, config.assistant_token_id, newline], device=device)
        begin, end, pad = talker.codec_think_bos_id, talker.codec_think_eos_id, talker.codec_pad_id
        with_language = [talker.codec_think_id, begin, _LANGUAGE, end, _SPEAKER, pad]
        without_language = [talker.codec_nothink_id, begin, end, _SPEAKER, pad, pad]
        # [with, without language; 6]: codec ids of positions 3 to 8.
        self._prompts = torch.tensor([with_language, without_language], device=device)

    def build(self, data: Utterances, placed: PackedStep, generator: torch.Generator | None) -> Batch:
        """Returns a step's batch. Without a generator there is no noise, and the first frames are predicted."""
        training, config, talker, device = self._training, self._config, self._talker, data.codes.device
        flat = torch.arange(training.rows * training.row_positions, device=device)
        sentence = torch.searchsorted(placed.starts, flat, right=True) - 1
        slot = sentence.clamp(min=0)
        utterance = placed.utterances[slot]
        position = flat - placed.starts[slot]
        auto_language, streaming = placed.auto_language[slot].long(), placed.streaming[slot]
        begin, tokens, frames = 9 - auto_language, data.token_counts[utterance], data.frames[utterance]
        first = torch.where(streaming, begin + 1, begin + tokens + 2)
        inside = (sentence >= 0) & (position < first + frames)

        index = position - begin
        is_text = (index >= 0) & (index < tokens) & inside
        row = torch.where(is_text, data.first_token[utterance] + index, 0)
        text = torch.where(is_text, data.tokens[row].long(), config.tts_pad_token_id)
        text = torch.where(index == tokens, config.tts_eos_token_id, text)
        text = torch.where(index == -1, config.tts_bos_token_id, text)
        text = torch.where(position < len(self._role), self._role[position.clamp(0, 2)], text)

        prompt = self._prompts[auto_language, (position - 3).clamp(0, 5)]
        is_speaker = (prompt == _SPEAKER) & (position >= 3) & (position < begin) & inside
        prompt = torch.where(prompt == _LANGUAGE, data.languages[utterance], prompt)
        prompt = torch.where(prompt == _SPEAKER, data.speakers[utterance], prompt)
        codec = torch.where((position >= 3) & (position < begin), prompt, -1)
        codec = torch.where((position >= begin) & (position < first - 1), talker.codec_pad_id, codec)
        codec = torch.where(position == first - 1, talker.codec_bos_id, codec)

        is_frame, next_frame = inside & (position >= first), position - first + 1
        before_frame = inside & (next_frame >= 0) & (next_frame < frames)
        codes = _frames_at(data, utterance, position - first, is_frame)
        next_codes = _frames_at(data, utterance, next_frame, before_frame)
        labels = torch.where(before_frame, next_codes[:, 0], IGNORED)
        labels = torch.where(inside & (next_frame == frames), talker.codec_eos_token_id, labels)
        predicted = self._choose_predicted(before_frame, generator)
        predicted_codes = predicted_inputs = next_codes[predicted]
        if generator is not None:
            codes = self._add_noise(codes, generator, whole_frames=True)
            predicted_inputs = self._add_noise(predicted_codes, generator, whole_frames=False)
        shape = (training.rows, training.row_positions)
        return Batch(
            text=text.view(shape),
            codec=torch.where(inside, codec, -1).view(shape),
            frames=codes.view(*shape, CODE_GROUPS),
            is_frame=is_frame.view(shape),
            positions=torch.where(inside, position, 0).view(shape),
            sentences=torch.where(inside, sentence, -1).view(shape),
            voices=_voices(data, placed, slot, is_speaker, generator, shape),
            labels=labels.view(shape),
            predicted=predicted,
            predicted_codes=predicted_codes,
            predicted_inputs=predicted_inputs[:, :-1],
            predicted_weight=before_frame[predicted].float(),
        )

    def _choose_predicted(self, before_frame: Tensor, generator: torch.Generator | None) -> Tensor:
        """Returns `predicted_frames` positions, random ones among those before a frame."""
        priority = before_frame.float()
        if generator is not None:
            priority = priority * (1 + torch.rand(priority.shape, generator=generator, device=priority.device))
        count = min(self._training.predicted_frames, len(priority))
        return priority.topk(count).indices

    def _add_noise(self, codes: Tensor, generator: torch.Generator, *, whole_frames: bool) -> Tensor:
        """Replaces some of codes 1 to 15 of [n, 16] with random ones, so that the models learn to recover.

        whole_frames: also some of codes 0, and some whole frames.
        """
        training, device = self._training, codes.device
        share = torch.full((CODE_GROUPS,), training.code_noise, device=device)
        share[0] = training.code0_noise if whole_frames else 0
        hit = torch.rand(codes.shape, generator=generator, device=device) < share
        if whole_frames:
            hit |= torch.rand((len(codes), 1), generator=generator, device=device) < training.frame_noise
        random = torch.randint(self._talker.codebook_size, codes.shape, generator=generator, device=device)
        return torch.where(hit, random, codes)


def _frames_at(data: Utterances, utterance: Tensor, index: Tensor, valid: Tensor) -> Tensor:
    """Returns frames [positions, 16] by their index in each position's utterance; zeros where not `valid`."""
    row = torch.where(valid, data.first_frame[utterance] + index, 0)
    return torch.where(valid[:, None], data.codes[row].long(), 0)


def _voices(
    data: Utterances,
    placed: PackedStep,
    slot: Tensor,
    is_speaker: Tensor,
    generator: torch.Generator | None,
    shape: tuple[int, int],
) -> Tensor | None:
    """Returns the batch's `voices`: a random reference of each sentence, or the first without a generator.

    slot: [positions], the index of each position's sentence; is_speaker: [positions], where its voice belongs.
    """
    choices = data.references.shape[1]
    if not choices:
        return None
    device = data.references.device
    column = torch.zeros(len(placed.utterances), dtype=torch.long, device=device)
    if generator is not None:
        column = torch.randint(choices, column.shape, generator=generator, device=device)
    rows = data.references[placed.utterances, column]
    voices = torch.where(is_speaker[:, None], data.embeddings[rows[slot]], 0)
    return voices.view(*shape, -1)
