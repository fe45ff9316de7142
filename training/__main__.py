"""`python -m training STEP --out DIR`: every step goes on from what it finds in DIR.

all         everything up to the checkpoint
corpus      the texts                              corpus.txt
synthesise  one round of audio                     (--audio)/round-00/
codec       the tokenizer's codec                  codec.pt, codec.jsonl
codes       a round's audio, encoded               codes-00.npz
talker      talker and code predictor              talker.pt, talker.jsonl, tokenizer/
polish      the codec's decoder alone              polish.pt, polish.jsonl
export      the checkpoint                         checkpoint/
speak       audio of the held-out sentences        spoken/
score       what that audio is worth               scores.json, scores.md
show        some of it to hear, and to see         shown/
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from . import corpus, synthesis
from .config import FULL, SMOKE, TrainingConfig
from .sentence import Sentence

if TYPE_CHECKING:
    import torch

    from .run import Deadline
    from .speak import Speaker

_PRESETS = {"full": FULL, "smoke": SMOKE}
_UNFINISHED = 3
"""The exit status when the time is over first: run the same command again."""
_STARTED = time.monotonic()


def _say(line: str) -> None:
    print(f"[{time.monotonic() - _STARTED:7.1f}] {line}", flush=True)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser("python -m training", description=__doc__, formatter_class=_Plain)
    made.add_argument("step", choices=STEPS)
    made.add_argument("--out", type=Path, required=True, help="the run's directory")
    made.add_argument("--preset", choices=_PRESETS, default="full")
    made.add_argument("--seconds", type=float, default=math.inf, help="stop after so many; run again to go on")
    made.add_argument("--codec-steps", type=int, help="instead of the preset's")
    made.add_argument("--talker-steps", type=int, help="instead of the preset's")
    made.add_argument("--polish-steps", type=int, help="instead of the preset's")
    made.add_argument("--codec-seconds", type=float, help="as many steps as fit; the log says how many")
    made.add_argument("--talker-seconds", type=float, help="likewise")
    made.add_argument("--polish-seconds", type=float, help="likewise")
    made.add_argument("--audio", type=Path, help="where audio lies while it is needed (default: OUT/audio)")
    made.add_argument("--sources", type=Path, default=Path("/"), help="the root under which Debian's texts lie")
    made.add_argument("--workers", type=int, default=os.cpu_count(), help="of synthesis")
    made.add_argument("--round", type=int, default=0, help="of synthesis and codes")
    made.add_argument("--device", help="default: cuda where there is one")
    made.add_argument("--no-compile", action="store_true", help="run every step as it is")
    made.add_argument("--checkpoint", help="what speaks (default: OUT/checkpoint), a directory or `bundled`")
    made.add_argument("--random", type=int, default=0, help="so many sentences of the corpus are spoken too")
    made.add_argument("--only", default="", help="of the cases that are spoken, those whose names hold this")
    made.add_argument("--at-once", type=int, default=16, help="requests that are spoken together")
    return made


class _Plain(argparse.RawDescriptionHelpFormatter):
    """The list of steps, as it is written."""


class Steps:
    """The steps of one command."""

    def __init__(self, given: argparse.Namespace) -> None:
        from .run import Deadline

        self.given = given
        self.out: Path = given.out
        self.audio: Path = given.audio or given.out / "audio"
        self.config = _config(given)
        self.deadline = Deadline(given.seconds)
        self.out.mkdir(parents=True, exist_ok=True)

    @property
    def corpus_path(self) -> Path:
        """The corpus file."""
        return self.out / "corpus.txt"

    def corpus(self) -> bool:
        """Writes the corpus, if there is none."""
        if not self.corpus_path.exists():
            corpus.write(self.corpus_path, corpus.make(self.config.corpus, self.given.sources, _say))
        _say(f"corpus: {corpus.digest(self.corpus_path)}")
        return True

    def synthesise(self) -> bool:
        """Makes a round of audio."""
        for _ in self._shards(self.given.round):
            pass
        return True

    def _shards(self, number: int) -> Generator[Path]:
        workers = self.given.workers
        return synthesis.make_round(self.config.synthesis, self.corpus_path, self.audio, number, workers, _say)

    def codes(self) -> bool:
        """Makes a round of audio and encodes it; the codes are all that is kept."""
        from . import codec, codes

        device, number = _device(self.given), self.given.round
        trained = codec.load(self.config, self.out, device)
        codes.encode_round(trained, self._shards(number), codes.codes_path(self.out, number), device)
        codes.forget_audio(self.audio, number)
        return True

    def codec(self) -> bool:
        """Trains the codec on the first of round 0, while the rest is made."""
        from . import codec, crops

        device, shards = _device(self.given), self._shards(0)
        audio = crops.load_audio(shards, self.config.codec.hours, device)
        fit = _fit(self.given.codec_seconds)
        finished = codec.train(self.config, audio, self.out, device, self.deadline, _say, fit)
        for _ in shards:
            pass
        return finished

    def talker(self) -> bool:
        """Trains the talker; rounds of codes are made beside it as it needs them."""
        from . import codes, talker

        device, sentences = _device(self.given), corpus.read(self.corpus_path)
        fit = _fit(self.given.talker_seconds)
        self._tokenizer(sentences)
        with codes.Ahead(self._arguments(), _say) as ahead:

            def round_of(number: int) -> codes.Coded:
                path, following = codes.codes_path(self.out, number), number + 1
                if not path.exists():
                    ahead.wait(number)
                if following < self.config.synthesis.rounds and not codes.codes_path(self.out, following).exists():
                    ahead.begin(following)
                return codes.read_codes(path)

            learner = talker.Learner(self.config, self.out, device, fit)
            return talker.train(learner, sentences, round_of, self.deadline, _say)

    def polish(self) -> bool:
        """Trains the decoder on, on audio of a round that the talker does not learn from. May run beside the talker."""
        from . import codec, codes, crops

        number, device = self.config.synthesis.rounds, _device(self.given)
        shards = self._shards(number)
        audio = crops.load_audio(shards, self.config.codec.hours, device)
        shards.close()
        fit = _fit(self.given.polish_seconds)
        finished = codec.polish(self.config, audio, self.out, device, self.deadline, _say, fit)
        if finished:
            codes.forget_audio(self.audio, number)
        return finished

    def _tokenizer(self, sentences: list[Sentence]) -> None:
        from . import tokenizer

        if not (self.out / "tokenizer" / "tokenizer_config.json").exists():
            tokenizer.train(
                [sentence.text for sentence in sentences], self.config.talker.merges, self.out / "tokenizer"
            )

    def _arguments(self) -> list[str]:
        """Of `codes`, for the process beside."""
        given = self.given
        where = ["--out", str(self.out), "--audio", str(self.audio), "--preset", given.preset]
        device = ["--device", given.device] if given.device else []
        return [*where, *device, "--workers", str(max(1, given.workers - 2))]

    def export(self) -> bool:
        """Writes the checkpoint of what is trained so far."""
        import torch

        from . import codec, export, talker

        device = torch.device("cpu")
        learner = talker.Learner(self.config, self.out, device)
        decoder = codec.load_polished(self.config, self.out, device).decoder
        size = export.export(self.config, learner.talker, decoder, self.out / "tokenizer", self.out / "checkpoint")
        _say(f"export: {self.out / 'checkpoint'}: {size} bytes after {learner.run.step} steps")
        return True

    def speak(self) -> bool:
        """Speaks the held-out sentences of its languages, and passes espeak-ng's through a codec trained here."""
        from . import speak

        given, speaker = self.given, self._speaker()
        voices = list(self.config.synthesis.speakers)
        sets = {
            name: corpus.held_out(name) for name, language in corpus.HELD_OUT.items() if language in speaker.languages
        }
        cases = speak.cases(voices)
        if given.random:
            sentences = [each for each in corpus.read(self.corpus_path) if each.language in speaker.languages]
            sets["random"] = random.Random(self.config.corpus.seed).sample(sentences, given.random)
            cases.append(speak.Case(voice=voices[0], streaming=False, sentences="random"))
        for case in cases:
            if given.only in case.name and case.sentences in sets:
                requests = speak.wanted(case, sets[case.sentences])
                speak.write(self.out / "spoken" / f"{case.name}.npz", requests, speaker.speak(requests))
                _say(f"speak: {case.name}")
        if (self.out / "codec.pt").exists():
            self._reconstruct(voices)
        return True

    def _reconstruct(self, voices: list[str]) -> None:
        """espeak-ng's templates, and German by the first voice, encoded and decoded."""
        from . import codec, reconstruct

        device = _device(self.given)
        trained = codec.load_polished(self.config, self.out, device)
        for voice, sentences in [*((voice, "templates") for voice in voices), (voices[0], "german")]:
            name = f"codec-{voice}-{sentences}"
            if self.given.only in name:
                path = self.out / "spoken" / f"{name}.npz"
                reconstruct.write(path, self.config, trained, voice, corpus.held_out(sentences), device)
                _say(f"speak: {name}")

    def score(self) -> bool:
        """Scores what was spoken."""
        from . import score, speak
        from .hearing import Recognisers

        english = [name for name, language in corpus.HELD_OUT.items() if language == "english"]
        recognisers = {name: Recognisers.of([text for text, _ in corpus.held_out(name)]) for name in english}
        scores = []
        for path in sorted((self.out / "spoken").glob("*.npz")):
            heard = recognisers.get(path.stem.rpartition("-")[2])
            scores.append(score.score(path.stem, speak.read(path), heard, self.config.synthesis))
            _say(f"score: {path.stem}: {scores[-1].identified}, {scores[-1].nearest}, {scores[-1].pieces}")
        score.write(self.out, scores)
        print(score.table(scores))
        return True

    def show(self) -> bool:
        """Speaks a few sentences into files of their own, and draws them."""
        from . import show

        show.show(self._speaker(), self.out / "shown")
        return True

    def _speaker(self) -> Speaker:
        from .speak import Speaker

        given = self.given
        return Speaker(given.checkpoint or str(self.out / "checkpoint"), _device(given), given.at_once)

    def all(self) -> bool:
        """From nothing to a checkpoint."""
        trained = self.corpus() and self._codec_from_nothing() and self.talker() and self._polished()
        if (self.out / "talker.pt").exists():
            self.export()
        return trained

    def _codec_from_nothing(self) -> bool:
        """Audio is needed until round 0 is encoded."""
        if (self.out / "codes-00.npz").exists():
            return True
        return self.codec()

    def _polished(self) -> bool:
        """Audio is needed until the decoder is finished."""
        from . import codec

        steps = None if self.given.polish_seconds is not None else self.config.codec.polish_steps
        return codec.is_polished(self.out, steps) or self.polish()


STEPS = ("all", "corpus", "synthesise", "codec", "codes", "talker", "polish", "export", "speak", "score", "show")


def _config(given: argparse.Namespace) -> TrainingConfig:
    config = _PRESETS[given.preset]
    codec = replace(
        config.codec,
        steps=given.codec_steps or config.codec.steps,
        polish_steps=given.polish_steps or config.codec.polish_steps,
    )
    talker = replace(config.talker, steps=given.talker_steps or config.talker.steps)
    return replace(config, codec=codec, talker=talker, compile=config.compile and not given.no_compile)


def _fit(seconds: float | None) -> Deadline | None:
    from .run import Deadline

    return None if seconds is None else Deadline(seconds)


def _device(given: argparse.Namespace) -> torch.device:
    import torch

    torch.set_float32_matmul_precision("high")
    # What cannot be compiled runs as it is.
    torch._dynamo.config.suppress_errors = True
    return torch.device(given.device or ("cuda" if torch.cuda.is_available() else "cpu"))


def main(arguments: list[str]) -> int:
    """Runs one step; returns the exit status."""
    steps = Steps(parser().parse_args(arguments))
    finished: bool = getattr(steps, steps.given.step)()
    if not finished:
        _say("the time is over: run the same command again to go on")
    return 0 if finished else _UNFINISHED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
