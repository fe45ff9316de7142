"""Speaks many sentences with a checkpoint, as the service does: talker and codec engines, many requests at once.

Speaking and scoring are apart, with audio files between them: where there is a GPU there may be no recogniser.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from .sentence import Sentence

_CHUNK = 4
"""Frames that the codec decodes at once: what plays while a stream plays."""
_MOST_FRAMES = 500


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A sentence to speak."""

    sentence: Sentence
    voice: str
    streaming: bool
    seed: int


class Said(NamedTuple):
    """What became of it."""

    pcm: bytes
    ended: bool
    """By itself: what did not is a runaway."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A set of sentences, spoken by one voice from one layout of the text."""

    voice: str
    streaming: bool
    sentences: str
    """A held-out set, or `random`: sentences of the corpus."""

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.voice}-{'streaming' if self.streaming else 'whole'}-{self.sentences}"


def cases(voices: Sequence[str]) -> list[Case]:
    """What is scored: templates by every voice, the other sets by the first, each in both layouts of the text."""
    others = [name for name in corpus.HELD_OUT if name != "templates"]
    asked = [(voice, "templates") for voice in voices] + [(voices[0], name) for name in others]
    return [
        Case(voice=voice, streaming=streaming, sentences=name) for voice, name in asked for streaming in (False, True)
    ]


def wanted(case: Case, sentences: Sequence[Sentence]) -> list[Wanted]:
    """A case's requests; the seed of each is its number."""
    return [
        Wanted(sentence=sentence, voice=case.voice, streaming=case.streaming, seed=seed)
        for seed, sentence in enumerate(sentences)
    ]


class Speaker:
    """A checkpoint, ready to speak."""

    def __init__(self, checkpoint: str, device: torch.device, at_once: int) -> None:
        self._device, self._at_once = device, at_once
        self.languages = frozenset(Checkpoint(checkpoint).config.talker_config.codec_language_id)
        """Those that the checkpoint knows."""
        self._talker = _talker(checkpoint, device, at_once)
        self._talker.warm_up()
        self._codec = EagerCodecEngine(Checkpoint(checkpoint, device).load_codec_decoder(), at_once)

    def speak(self, requests: Sequence[Wanted]) -> list[Said]:
        """Each request's speech; whatever else is spoken beside makes no difference on a CPU."""
        codes = _codes(self._talker, requests, self._at_once)
        pcm = self.decode([frames for frames, _ in codes])
        return [Said(each, ended) for each, (_, ended) in zip(pcm, codes, strict=True)]

    def decode(self, codes: Sequence[bytes]) -> list[bytes]:
        """Streams of codes, int16 little-endian, to 16-bit PCM, chunk by chunk."""
        decoded: list[bytes] = []
        for first in range(0, len(codes), self._at_once):
            decoded += self._decode_together(codes[first : first + self._at_once])
        return decoded

    def _decode_together(self, codes: Sequence[bytes]) -> list[bytes]:
        frames = [self._codec.split(each) if each else [] for each in codes]
        pcm: list[list[bytes]] = [[] for _ in frames]
        for stream in range(len(frames)):
            self._codec.open(str(stream))
        for at in range(0, max(map(len, frames)), _CHUNK):
            playing = [stream for stream, each in enumerate(frames) if len(each) > at]
            chunks = [frames[stream][at : at + _CHUNK] for stream in playing]
            made = self._codec.launch([str(stream) for stream in playing], chunks, (len(playing), _CHUNK))
            for stream, part in zip(playing, made, strict=True):
                pcm[stream].append(part)
        for stream in range(len(frames)):
            self._codec.release(str(stream))
        return [b"".join(parts) for parts in pcm]


def _talker(checkpoint: str, device: torch.device, at_once: int) -> TalkerEngine[Any]:
    """The engine that a service on this device runs."""
    if device.type == "cuda":
        from syrinx_stages.talker.cuda_engine import CudaTalkerEngine

        return CudaTalkerEngine(Checkpoint(checkpoint, device, torch.bfloat16), at_once)
    return EagerTalkerEngine(Checkpoint(checkpoint, device))


def _codes(engine: TalkerEngine[Any], requests: Sequence[Wanted], at_once: int) -> list[tuple[bytes, bool]]:
    """Codes of each request, and whether it ended by itself; as soon as one ends the next one is begun."""
    waiting: Iterator[int] = iter(range(len(requests)))
    frames: list[list[bytes]] = [[] for _ in requests]
    ended = [False] * len(requests)
    speaking: list[int] = []
    while True:
        while len(speaking) < at_once and (number := next(waiting, None)) is not None:
            engine.admit([engine.prepare(_request(number, requests[number]), b"", None)])
            speaking.append(number)
        if not speaking:
            return [(b"".join(each), whole) for each, whole in zip(frames, ended, strict=True)]
        results = engine.read(engine.launch([str(number) for number in speaking]))
        for request_id, result in results.items():
            number = int(request_id)
            if isinstance(result, End):
                ended[number] = result.reason is EndReason.STOP
                speaking.remove(number)
                engine.release(request_id)
            else:
                frames[number].append(result)


def _request(number: int, wanted: Wanted) -> SpeechRequest:
    return SpeechRequest(
        id=str(number),
        accepted_at=0.0,
        text=wanted.sentence.text,
        task_type=TaskType.CUSTOM_VOICE,
        voice=wanted.voice,
        language=wanted.sentence.language,
        non_streaming_text=not wanted.streaming,
        max_frames=_MOST_FRAMES,
        seed=wanted.seed,
    )


class Spoken(NamedTuple):
    """A case's file: audio, one sentence after the other."""

    pcm: np.ndarray
    """16-bit samples of all."""
    samples: np.ndarray
    """[sentences]: how many of each."""
    ended: np.ndarray
    texts: np.ndarray
    languages: np.ndarray
    """[sentences] each."""
    voice: str


def write(path: Path, requests: Sequence[Wanted], said: Sequence[Said]) -> None:
    """Writes a case's audio, compressed without loss."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pcm = np.frombuffer(b"".join(each.pcm for each in said), "<i2")
    spoken = Spoken(
        pcm=pcm,
        samples=np.array([len(each.pcm) // 2 for each in said]),
        ended=np.array([each.ended for each in said]),
        texts=np.array([each.sentence.text for each in requests]),
        languages=np.array([each.sentence.language for each in requests]),
        voice=requests[0].voice,
    )
    np.savez_compressed(path, **spoken._asdict())


def read(path: Path) -> Spoken:
    """Reads a case's audio."""
    with np.load(path) as file:
        fields = {field: file[field] for field in Spoken._fields}
        return Spoken(**{**fields, "voice": str(fields["voice"])})
