"""Generates speech of test sentences with a checkpoint, through the service's talker and codec engines, in batches.

Speaking and scoring are separate steps with audio files in between, because a GPU machine may lack the recognizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch

from syrinx_stages.codec.eager_engine import EagerCodecEngine
from syrinx_stages.contract.messages import End, EndReason, SpeechRequest, TaskType
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.talker.eager_engine import EagerTalkerEngine
from syrinx_stages.talker.engine import TalkerEngine

from . import corpus
from .corpus import Sentence

_CHUNK_FRAMES = 4
"""Frames decoded at once, as for a stream during playback."""
_MAX_FRAMES = 500


class Utterance(msgspec.Struct, frozen=True, kw_only=True):
    """A sentence to speak."""

    sentence: Sentence
    voice: str
    streaming: bool
    seed: int


class Speech(NamedTuple):
    """The generated speech of an utterance."""

    pcm: bytes
    ended: bool
    """False for a runaway, which was stopped at the frame limit."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A set of sentences, spoken by one voice with whole or streaming text."""

    voice: str
    streaming: bool
    sentences: str
    """A held-out set, or `random` for sentences of the corpus."""

    @property
    def name(self) -> str:
        """The stem of the case's file."""
        return f"{self.voice}-{'streaming' if self.streaming else 'whole'}-{self.sentences}"


def cases(voices: Sequence[str]) -> list[Case]:
    """Returns the cases: templates by every voice, the other sets by the first; each with whole and streaming text."""
    others = [name for name in corpus.HELD_OUT if name != "templates"]
    pairs = [(voice, "templates") for voice in voices] + [(voices[0], name) for name in others]
    return [
        Case(voice=voice, streaming=streaming, sentences=name) for voice, name in pairs for streaming in (False, True)
    ]


def case_utterances(case: Case, sentences: Sequence[Sentence]) -> list[Utterance]:
    """Returns a case's utterances; the index of each is its seed."""
    return [
        Utterance(sentence=sentence, voice=case.voice, streaming=case.streaming, seed=seed)
        for seed, sentence in enumerate(sentences)
    ]


class Speaker:
    """A loaded checkpoint."""

    def __init__(self, checkpoint: str, device: torch.device, concurrency: int) -> None:
        self._concurrency = concurrency
        self.languages = frozenset(Checkpoint(checkpoint).config.talker_config.codec_language_id)
        """The checkpoint's languages."""
        self._talker = _load_talker(checkpoint, device, concurrency)
        self._talker.warm_up()
        self._codec = EagerCodecEngine(Checkpoint(checkpoint, device).load_codec_decoder(), concurrency)

    def speak(self, utterances: Sequence[Utterance]) -> list[Speech]:
        """Returns the speech of each utterance; on a CPU it does not depend on the batch."""
        codes = _generate_codes(self._talker, utterances, self._concurrency)
        pcm = self.decode([frames for frames, _ in codes])
        return [Speech(each, ended) for each, (_, ended) in zip(pcm, codes, strict=True)]

    def decode(self, codes: Sequence[bytes]) -> list[bytes]:
        """Decodes streams of codes (int16, little-endian) to 16-bit PCM, chunk by chunk."""
        decoded: list[bytes] = []
        for first in range(0, len(codes), self._concurrency):
            decoded += self._decode_batch(codes[first : first + self._concurrency])
        return decoded

    def _decode_batch(self, codes: Sequence[bytes]) -> list[bytes]:
        frames = [self._codec.split(each) if each else [] for each in codes]
        pcm: list[list[bytes]] = [[] for _ in frames]
        for stream in range(len(frames)):
            self._codec.open(str(stream))
        for at in range(0, max(map(len, frames)), _CHUNK_FRAMES):
            active = [stream for stream, each in enumerate(frames) if len(each) > at]
            chunks = [frames[stream][at : at + _CHUNK_FRAMES] for stream in active]
            decoded = self._codec.launch([str(stream) for stream in active], chunks, (len(active), _CHUNK_FRAMES))
            for stream, part in zip(active, decoded, strict=True):
                pcm[stream].append(part)
        for stream in range(len(frames)):
            self._codec.release(str(stream))
        return [b"".join(parts) for parts in pcm]


def _load_talker(checkpoint: str, device: torch.device, concurrency: int) -> TalkerEngine[Any]:
    """Returns the engine that a service uses on this device."""
    if device.type == "cuda":
        from syrinx_stages.talker.cuda_engine import CudaTalkerEngine

        return CudaTalkerEngine(Checkpoint(checkpoint, device, torch.bfloat16), concurrency)
    return EagerTalkerEngine(Checkpoint(checkpoint, device))


def _generate_codes(
    engine: TalkerEngine[Any], utterances: Sequence[Utterance], concurrency: int
) -> list[tuple[bytes, bool]]:
    """Returns each utterance's codes and whether it ended by itself; keeps `concurrency` utterances running."""
    waiting = iter(range(len(utterances)))
    frames: list[list[bytes]] = [[] for _ in utterances]
    ended = [False] * len(utterances)
    running: list[int] = []
    while True:
        while len(running) < concurrency and (number := next(waiting, None)) is not None:
            engine.admit([engine.prepare(_speech_request(number, utterances[number]), b"", None)])
            running.append(number)
        if not running:
            return [(b"".join(each), whole) for each, whole in zip(frames, ended, strict=True)]
        results = engine.read(engine.launch([str(number) for number in running]))
        for request_id, result in results.items():
            number = int(request_id)
            if isinstance(result, End):
                ended[number] = result.reason is EndReason.STOP
                running.remove(number)
                engine.release(request_id)
            else:
                frames[number].append(result)


def _speech_request(number: int, utterance: Utterance) -> SpeechRequest:
    return SpeechRequest(
        id=str(number),
        accepted_at=0.0,
        text=utterance.sentence.text,
        task_type=TaskType.CUSTOM_VOICE,
        voice=utterance.voice,
        language=utterance.sentence.language,
        non_streaming_text=not utterance.streaming,
        max_frames=_MAX_FRAMES,
        seed=utterance.seed,
    )


class CaseAudio(NamedTuple):
    """The contents of a case's file; fields are [sentences] unless noted otherwise."""

    pcm: np.ndarray
    """Concatenated 16-bit samples of all sentences."""
    samples: np.ndarray
    """Number of samples."""
    ended: np.ndarray
    texts: np.ndarray
    languages: np.ndarray
    voice: str


def write(path: Path, utterances: Sequence[Utterance], speech: Sequence[Speech]) -> None:
    """Writes a case's audio with lossless compression."""
    path.parent.mkdir(parents=True, exist_ok=True)
    audio = CaseAudio(
        pcm=np.frombuffer(b"".join(each.pcm for each in speech), "<i2"),
        samples=np.array([len(each.pcm) // 2 for each in speech]),
        ended=np.array([each.ended for each in speech]),
        texts=np.array([each.sentence.text for each in utterances]),
        languages=np.array([each.sentence.language for each in utterances]),
        voice=utterances[0].voice,
    )
    np.savez_compressed(path, **audio._asdict())


def read(path: Path) -> CaseAudio:
    """Reads a case's audio."""
    with np.load(path) as file:
        fields = {field: file[field] for field in CaseAudio._fields}
        return CaseAudio(**{**fields, "voice": str(fields["voice"])})
