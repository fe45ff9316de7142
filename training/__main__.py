"""`python -m training STEP --out DIR`: each step resumes from the files in DIR.

all         all steps up to the checkpoint
corpus      build the text corpus                  corpus.txt
synthesize  synthesize one round of audio          (--audio)/round-00/
codec       train the codec                        codec.pt, codec.jsonl
codes       synthesize and encode one round        codes-00.npz
talker      train talker and code predictor        talker.pt, talker.jsonl, tokenizer/
finetune    train the codec's decoder further      decoder.pt, decoder.jsonl
export      write the checkpoint                   checkpoint/
speak       generate test sentences                spoken/
score       score the generated speech             scores.json, scores.md
show        write audio samples and spectrograms   shown/
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
from .corpus import Sentence

if TYPE_CHECKING:
    import torch

    from .run import Deadline
    from .speak import Speaker

_PRESETS = {"full": FULL, "smoke": SMOKE}
UNFINISHED = 3
"""Exit status when the time limit was reached: run the same command again."""
_STARTED = time.monotonic()


def _log(line: str) -> None:
    print(f"[{time.monotonic() - _STARTED:7.1f}] {line}", flush=True)


def build_parser() -> argparse.ArgumentParser:
    """Returns the command-line parser."""
    parser = argparse.ArgumentParser(
        "python -m training", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("--out", type=Path, required=True, help="directory of the run")
    parser.add_argument("--preset", choices=_PRESETS, default="full")
    parser.add_argument("--seconds", type=float, default=math.inf, help="time limit; run again to resume")
    for name, what in (("codec", "codec"), ("talker", "talker"), ("finetune", "decoder fine-tuning")):
        parser.add_argument(f"--{name}-steps", type=int, help=f"training steps of the {what} (default: the preset's)")
        parser.add_argument(
            f"--{name}-seconds", type=float, help=f"train the {what} for as many steps as fit into this time"
        )
    parser.add_argument("--audio", type=Path, help="directory of the temporary audio (default: OUT/audio)")
    parser.add_argument("--sources", type=Path, default=Path("/"), help="root directory of Debian's text packages")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="synthesis processes (default: CPU count)")
    parser.add_argument("--round", type=int, default=0, help="round of `synthesize` and `codes` (default: 0)")
    parser.add_argument("--device", help="torch device (default: cuda if available, else cpu)")
    parser.add_argument("--no-compile", action="store_true", help="disable torch.compile")
    parser.add_argument(
        "--checkpoint", help="checkpoint of `speak` and `show`: a directory or `bundled` (default: OUT/checkpoint)"
    )
    parser.add_argument("--random", type=int, default=0, help="number of random corpus sentences to speak as well")
    parser.add_argument("--only", default="", help="speak only cases whose name contains this")
    parser.add_argument("--concurrency", type=int, default=16, help="utterances generated in one batch (default: 16)")
    return parser


class Steps:
    """Runs the steps of one command. Each returns True when it is complete, False when the time limit was reached."""

    def __init__(self, args: argparse.Namespace) -> None:
        from .run import Deadline

        self.args = args
        self.out: Path = args.out
        self.audio: Path = args.audio or args.out / "audio"
        self.config = _config(args)
        self.deadline = Deadline(args.seconds)
        self.corpus_path = self.out / "corpus.txt"
        self.out.mkdir(parents=True, exist_ok=True)

    def corpus(self) -> bool:
        """Builds the corpus, unless it exists."""
        if not self.corpus_path.exists():
            corpus.write(self.corpus_path, corpus.build(self.config.corpus, self.args.sources, _log))
        _log(f"corpus: {corpus.digest(self.corpus_path)}")
        return True

    def synthesize(self) -> bool:
        """Synthesizes a round of audio."""
        for _ in self._shards(self.args.round):
            pass
        return True

    def _shards(self, number: int) -> Generator[Path]:
        workers = self.args.workers
        return synthesis.make_round(self.config.synthesis, self.corpus_path, self.audio, number, workers, _log)

    def codes(self) -> bool:
        """Synthesizes a round and encodes it; keeps the codes and deletes the audio."""
        from . import codec, codes

        device, number = _device(self.args), self.args.round
        trained = codec.load(self.config, self.out, device)
        codes.encode_round(trained, self._shards(number), codes.codes_path(self.out, number), device)
        codes.delete_audio(self.audio, number)
        return True

    def codec(self) -> bool:
        """Trains the codec on the first hours of round 0 while the rest is synthesized."""
        from . import codec, crops

        device, shards = _device(self.args), self._shards(0)
        audio = crops.load_audio(shards, self.config.codec.hours, device)
        finish_by = _optional_deadline(self.args.codec_seconds)
        finished = codec.train(self.config, audio, self.out, device, self.deadline, _log, finish_by)
        for _ in shards:
            pass
        return finished

    def talker(self) -> bool:
        """Trains the talker; the next round of codes is made in the background."""
        from . import codes, talker

        device, sentences = _device(self.args), corpus.read(self.corpus_path)
        finish_by = _optional_deadline(self.args.talker_seconds)
        self._train_tokenizer(sentences)
        with codes.RoundPrefetcher(self._codes_arguments(), _log) as prefetcher:

            def load_round(number: int) -> codes.RoundCodes:
                path, following = codes.codes_path(self.out, number), number + 1
                if not path.exists():
                    prefetcher.wait(number)
                if following < self.config.synthesis.rounds and not codes.codes_path(self.out, following).exists():
                    prefetcher.start(following)
                return codes.read_codes(path)

            trainer = talker.Trainer(self.config, self.out, device, finish_by)
            return talker.train(trainer, sentences, load_round, self.deadline, _log)

    def finetune(self) -> bool:
        """Fine-tunes the decoder on a round that the talker does not learn from. It may run beside `talker`."""
        from . import codec, codes, crops

        number, device = self.config.synthesis.rounds, _device(self.args)
        shards = self._shards(number)
        audio = crops.load_audio(shards, self.config.codec.hours, device)
        shards.close()
        finish_by = _optional_deadline(self.args.finetune_seconds)
        finished = codec.finetune_decoder(self.config, audio, self.out, device, self.deadline, _log, finish_by)
        if finished:
            codes.delete_audio(self.audio, number)
        return finished

    def _train_tokenizer(self, sentences: list[Sentence]) -> None:
        from . import tokenizer

        directory = self.out / "tokenizer"
        if not (directory / "tokenizer_config.json").exists():
            tokenizer.train([sentence.text for sentence in sentences], self.config.talker.merges, directory)

    def _codes_arguments(self) -> list[str]:
        """Returns the options of `codes` for the background process."""
        args = self.args
        options = ["--out", str(self.out), "--audio", str(self.audio), "--preset", args.preset]
        device = ["--device", args.device] if args.device else []
        return [*options, *device, "--workers", str(max(1, args.workers - 2))]

    def export(self) -> bool:
        """Writes the checkpoint of the current state of training."""
        import torch

        from . import codec, export, talker

        device = torch.device("cpu")
        trainer = talker.Trainer(self.config, self.out, device)
        decoder = codec.load_finetuned(self.config, self.out, device).decoder
        size = export.export(self.config, trainer.talker, decoder, self.out / "tokenizer", self.out / "checkpoint")
        _log(f"export: {self.out / 'checkpoint'}: {size} bytes after {trainer.run.step} steps")
        return True

    def speak(self) -> bool:
        """Speaks the held-out sentences in the checkpoint's languages; passes espeak-ng's through the trained codec."""
        from . import speak

        args, speaker = self.args, self._speaker()
        voices = list(self.config.synthesis.speakers)
        sets = {
            name: corpus.held_out(name) for name, language in corpus.HELD_OUT.items() if language in speaker.languages
        }
        cases = speak.cases(voices)
        if args.random:
            sentences = [each for each in corpus.read(self.corpus_path) if each.language in speaker.languages]
            sets["random"] = random.Random(self.config.corpus.seed).sample(sentences, args.random)
            cases.append(speak.Case(voice=voices[0], streaming=False, sentences="random"))
        for case in cases:
            if args.only in case.name and case.sentences in sets:
                utterances = speak.case_utterances(case, sets[case.sentences])
                speak.write(self.out / "spoken" / f"{case.name}.npz", utterances, speaker.speak(utterances))
                _log(f"speak: {case.name}")
        if (self.out / "codec.pt").exists():
            self._reconstruct(voices)
        return True

    def _reconstruct(self, voices: list[str]) -> None:
        """Encodes and decodes espeak-ng's templates by every voice, and its German by the first voice."""
        from . import codec, reconstruct

        device = _device(self.args)
        trained = codec.load_finetuned(self.config, self.out, device)
        for voice, sentences in [*((voice, "templates") for voice in voices), (voices[0], "german")]:
            name = f"codec-{voice}-{sentences}"
            if self.args.only in name:
                path = self.out / "spoken" / f"{name}.npz"
                reconstruct.write(path, self.config, trained, voice, corpus.held_out(sentences), device)
                _log(f"speak: {name}")

    def score(self) -> bool:
        """Scores the generated speech."""
        from . import score, speak
        from .recognizer import RecognizerPair

        english = [name for name, language in corpus.HELD_OUT.items() if language == "english"]
        recognizers = {name: RecognizerPair.create([text for text, _ in corpus.held_out(name)]) for name in english}
        scores = []
        for path in sorted((self.out / "spoken").glob("*.npz")):
            pair = recognizers.get(path.stem.rpartition("-")[2])
            scores.append(score.score(path.stem, speak.read(path), pair, self.config.synthesis))
            _log(f"score: {path.stem}: {scores[-1].identified}, {scores[-1].nearest}, {scores[-1].segments}")
        score.write(self.out, scores)
        print(score.table(scores))
        return True

    def show(self) -> bool:
        """Writes audio files and spectrograms of a few sentences."""
        from . import show

        show.show(self._speaker(), self.out / "shown")
        return True

    def _speaker(self) -> Speaker:
        from .speak import Speaker

        args = self.args
        return Speaker(args.checkpoint or str(self.out / "checkpoint"), _device(args), args.concurrency)

    def all(self) -> bool:
        """Runs all steps up to the checkpoint, skipping those that are complete."""
        # The codec's audio is not needed any more once round 0 is encoded.
        has_codec = self.corpus() and ((self.out / "codes-00.npz").exists() or self.codec())
        trained = has_codec and self.talker() and self._finetune_if_needed()
        if (self.out / "talker.pt").exists():
            self.export()
        return trained

    def _finetune_if_needed(self) -> bool:
        """Skips fine-tuning, and synthesizing its audio, once it is done."""
        from . import codec

        steps = None if self.args.finetune_seconds is not None else self.config.codec.finetune_steps
        return codec.is_finetuned(self.out, steps) or self.finetune()


STEPS = ("all", "corpus", "synthesize", "codec", "codes", "talker", "finetune", "export", "speak", "score", "show")


def _config(args: argparse.Namespace) -> TrainingConfig:
    config = _PRESETS[args.preset]
    codec = replace(
        config.codec,
        steps=args.codec_steps or config.codec.steps,
        finetune_steps=args.finetune_steps or config.codec.finetune_steps,
    )
    talker = replace(config.talker, steps=args.talker_steps or config.talker.steps)
    return replace(config, codec=codec, talker=talker, compile=config.compile and not args.no_compile)


def _optional_deadline(seconds: float | None) -> Deadline | None:
    from .run import Deadline

    return None if seconds is None else Deadline(seconds)


def _device(args: argparse.Namespace) -> torch.device:
    import torch

    torch.set_float32_matmul_precision("high")
    # Functions that fail to compile run eagerly.
    torch._dynamo.config.suppress_errors = True
    return torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))


def main(arguments: list[str]) -> int:
    """Runs one step; returns the exit status."""
    steps = Steps(build_parser().parse_args(arguments))
    finished: bool = getattr(steps, steps.args.step)()
    if not finished:
        _log("time limit reached: run the same command again to resume")
    return 0 if finished else UNFINISHED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
