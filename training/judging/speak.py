"""Generates speech of test sentences with a checkpoint, through the service's talker engine, in batches.

Speaking and scoring are separate steps with audio files in between, because a GPU machine may lack the recognizer.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import End, EndReason, SpeechRequest, TaskType
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.config import CODE_GROUPS
from syrinx_stages.talker.eager_engine import EagerTalkerEngine
from syrinx_stages.talker.engine import TalkerEngine
from training.codec.model import Codec
from training.codec.train import encode
from training.config import SynthesisConfig
from training.data import corpus, synthesis
from training.data.corpus import Sentence

_MAX_FRAMES = 500
_CHUNK_FRAMES = 32
"""Frames decoded at once."""
_WINDOW, _HOP = 1_024, 256
"""Of the spectrograms, in samples."""
_MIN_DB, _MAX_DB = -95, -35
"""The range of the colors."""
_INCHES_PER_SECOND, _INCHES_HIGH = 2.5, 2.0


class Utterance(msgspec.Struct, frozen=True, kw_only=True):
    """A sentence to speak, and its speech."""

    sentence: Sentence
    voice: str
    streaming: bool
    seed: int
    reference: bytes = b""
    """Reference audio for voice cloning, like `pcm`; empty for a checkpoint with speakers of its own."""
    reference_text: str = ""
    """What the reference says; empty to use its speaker embedding alone."""
    pcm: bytes = b""
    """16-bit samples at 24 kHz."""
    ended: bool = True
    """False for a runaway, which was stopped at the frame limit."""


class Case(NamedTuple):
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
    """Returns the cases, with whole and streaming text: templates by every voice, the other sets by the first."""
    others = [name for name in corpus.HELD_OUT if name != "templates"]
    pairs = [(voice, "templates") for voice in voices] + [(voices[0], name) for name in others]
    both = [Case(voice, streaming, name) for voice, name in pairs for streaming in (False, True)]
    return [*both, Case(voices[0], False, "random")]


SHOWN = (
    Case("us", False, "templates"),
    Case("us_f", False, "natural"),
    Case("us_m", True, "natural"),
    Case("gb", False, "numbers"),
    Case("us", False, "german"),
)
"""The first sentence of each is shown, if the checkpoint has its language."""


def case_utterances(case: Case, sentences: Sequence[Sentence]) -> list[Utterance]:
    """Returns a case's utterances, without speech; the index of each is its seed."""
    return [
        Utterance(sentence=sentence, voice=case.voice, streaming=case.streaming, seed=seed)
        for seed, sentence in enumerate(sentences)
    ]


def write(path: Path, utterances: Sequence[Utterance]) -> None:
    """Writes a case's file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.msgpack.encode(utterances))


def read(path: Path) -> list[Utterance]:
    """Reads a case's file."""
    return msgspec.msgpack.decode(path.read_bytes(), type=list[Utterance])


class Speaker:
    """A loaded checkpoint."""

    def __init__(self, checkpoint: str, device: torch.device, concurrency: int = 16) -> None:
        """concurrency: utterances generated in one batch."""
        self._device, self._concurrency = device, concurrency
        self.languages = frozenset(Checkpoint(checkpoint).config.talker_config.codec_language_id)
        """The checkpoint's languages."""
        self._talker: TalkerEngine
        if device.type == "cuda":
            from syrinx_stages.talker.cuda.engine import CudaTalkerEngine

            self._talker = CudaTalkerEngine(Checkpoint(checkpoint, device, torch.bfloat16), concurrency)
        else:
            self._talker = EagerTalkerEngine(Checkpoint(checkpoint, device))
        self._talker.warm_up()
        self._decoder = Checkpoint(checkpoint, device).load_codec_decoder()

    def speak(self, utterances: Sequence[Utterance]) -> list[Utterance]:
        """Returns the utterances with their speech; on a CPU it does not depend on the batch.

        Keeps `concurrency` utterances running.
        """
        engine, waiting = self._talker, iter(range(len(utterances)))
        frames: list[list[bytes]] = [[] for _ in utterances]
        ended = [False] * len(utterances)
        running: list[int] = []
        while True:
            while len(running) < self._concurrency and (number := next(waiting, None)) is not None:
                each = utterances[number]
                engine.admit([engine.prepare(_speech_request(number, each), b"", _reference(each))])
                running.append(number)
            if not running:
                break
            results = engine.read(engine.launch([str(number) for number in running]))
            for request_id, result in results.items():
                number = int(request_id)
                if isinstance(result, End):
                    ended[number] = result.reason is EndReason.STOP
                    running.remove(number)
                    engine.release(request_id)
                else:
                    frames[number].append(result)
        codes = [np.frombuffer(b"".join(each), "<i2").reshape(-1, CODE_GROUPS).astype(np.int64) for each in frames]
        pcm = self._decode([torch.from_numpy(each).to(self._device) for each in codes])
        return [msgspec.structs.replace(each, pcm=pcm[i], ended=ended[i]) for i, each in enumerate(utterances)]

    def reconstruct(self, utterances: Sequence[Utterance], codec: Codec, config: SynthesisConfig) -> list[Utterance]:
        """Returns the utterances read by espeak-ng, encoded with `codec` and decoded with the checkpoint's decoder.

        It is the quality that a perfect talker would reach with this codec.
        """
        codes = []
        for reading in espeak_readings(utterances, config):
            frames = np.array([len(reading) // FAMILY.samples_per_frame], np.int32)
            codes.append(encode(codec, torch.from_numpy(reading).to(self._device), frames).long())
        pcm = self._decode(codes)
        return [msgspec.structs.replace(each, pcm=pcm[i]) for i, each in enumerate(utterances)]

    @torch.inference_mode()
    def _decode(self, codes: Sequence[Tensor]) -> list[bytes]:
        pcm: list[bytes] = []
        for first in range(0, len(codes), self._concurrency):
            batch = codes[first : first + self._concurrency]
            lengths = torch.tensor([len(each) for each in batch])
            parts, state = [torch.zeros(len(batch), 0, device=self._device)], self._decoder.new_state(len(batch))
            padded = pad_sequence(list(batch), batch_first=True)
            for start in range(0, padded.shape[1], _CHUNK_FRAMES):
                chunk = padded[:, start : start + _CHUNK_FRAMES]
                counts = (lengths - start).clamp(0, chunk.shape[1])
                part, state = self._decoder(chunk, counts, state)
                parts.append(part)
            rows = torch.cat(parts, 1).float().mul(32767).round().clamp(-32768, 32767).to(torch.int16).cpu().numpy()
            counts = lengths * FAMILY.samples_per_frame
            pcm += [row[:count].tobytes() for row, count in zip(rows, counts.tolist(), strict=True)]
        return pcm


def espeak_readings(utterances: Sequence[Utterance], config: SynthesisConfig) -> list[synthesis.Samples]:
    """Returns espeak-ng's readings of the same sentences by the same speakers, at the mean rate."""
    rate = config.mean_words_per_minute
    return [synthesis.reading(config, each.sentence, each.voice, rate) for each in utterances]


def _reference(utterance: Utterance) -> bytes | None:
    """Returns the reference audio as the gateway stores it; None for a checkpoint with speakers of its own."""
    if not utterance.reference:
        return None
    return (np.frombuffer(utterance.reference, "<i2") / 32768).astype("<f4").tobytes()


def _speech_request(number: int, utterance: Utterance) -> SpeechRequest:
    return SpeechRequest(
        id=str(number),
        accepted_at=0.0,
        text=utterance.sentence.text,
        task_type=TaskType.BASE if utterance.reference else TaskType.CUSTOM_VOICE,
        voice=None if utterance.reference else utterance.voice,
        has_reference=bool(utterance.reference),
        reference_text=utterance.reference_text or None,
        x_vector_only=bool(utterance.reference) and not utterance.reference_text,
        language=utterance.sentence.language,
        non_streaming_text=not utterance.streaming,
        max_frames=_MAX_FRAMES,
        seed=utterance.seed,
    )


def show(speaker: Speaker, utterances: Mapping[str, Utterance], directory: Path) -> None:
    """Writes a FLAC file for each utterance, by name, and `spectrograms.png`, all on the same time scale."""
    import soundfile
    from matplotlib.figure import Figure

    directory.mkdir(parents=True, exist_ok=True)
    spoken = speaker.speak(list(utterances.values()))
    seconds = max(len(each.pcm) for each in spoken) / 2 / FAMILY.sample_rate
    figure = Figure(figsize=(1 + _INCHES_PER_SECOND * seconds, _INCHES_HIGH * len(spoken)), layout="constrained")
    axes = figure.subplots(len(spoken), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for row, name, each in zip(axes, utterances, spoken, strict=True):
        pcm = np.frombuffer(each.pcm, "<i2")
        soundfile.write(directory / f"{name}.flac", pcm, FAMILY.sample_rate, "PCM_16")
        samples = np.pad(pcm / 32768, (0, max(0, _WINDOW - len(pcm))))
        # Noise avoids the logarithm of digital silence.
        samples += np.random.default_rng(0).normal(0, 1e-6, len(samples))
        overlap = _WINDOW - _HOP
        row.specgram(samples, NFFT=_WINDOW, Fs=FAMILY.sample_rate, noverlap=overlap, vmin=_MIN_DB, vmax=_MAX_DB)
        text = "streaming text" if each.streaming else "whole text"
        row.set_title(f"{each.voice}, {text}: {each.sentence.text}", loc="left", fontsize="medium")
        row.set(ylabel="Hz")
    axes[-1].set(xlabel="s", xlim=(0, seconds))
    figure.savefig(directory / "spectrograms.png", dpi=80)
