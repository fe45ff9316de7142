"""`python -m training STEP --out DIR`: each step resumes from the files in DIR.

all         all steps up to the checkpoint
corpus      build the text corpus                  corpus.txt
codec       train the codec                        codec.pt, codec.jsonl
speaker     train the speaker encoder              speaker.pt, speaker.jsonl
encoder     train the encoder of cloning's codes   encoder.pt, encoder.jsonl
codes       synthesize and encode one round        audio/round-00/, codes-00.npz
talker      train talker and code predictor        talker.pt, talker.jsonl, tokenizer/
finetune    train the codec's decoder further      decoder.pt, decoder.jsonl
export      write the checkpoint                   checkpoint/
durations   measure how long its speech is         generation_config.json of the checkpoint
speak       generate test sentences                spoken/
score       score the generated speech             scores.json, scores.md
show        write audio samples and spectrograms   shown/

`speaker` and `encoder` are for presets that clone voices: base and base-smoke.
"""

import argparse
import math
import os
import random
import time
from collections.abc import Generator
from pathlib import Path

import torch
from msgspec.structs import replace

from syrinx_stages.model.describe import checkpoint_directory
from syrinx_stages.model.speaker_encoder import SpeakerEncoder
from training import checkpoint, export, speaker
from training.codec import loss as codec_loss
from training.codec import reference_encoder
from training.codec import train as codec
from training.config import BASE, BASE_SMOKE, FULL, SMOKE, CloningConfig, TrainingConfig
from training.data import codes, corpus, synthesis
from training.data.corpus import Sentence
from training.judging import clone, durations
from training.judging.speak import SHOWN, Case, Speaker, Utterance, case_utterances, cases, read, show, write
from training.run import is_finished
from training.talker import train as talker

_PRESETS = {"full": FULL, "base": BASE, "smoke": SMOKE, "base-smoke": BASE_SMOKE}
_STEPS = (
    "all",
    "corpus",
    "codec",
    "speaker",
    "encoder",
    "codes",
    "talker",
    "finetune",
    "export",
    "durations",
    "speak",
    "score",
    "show",
)
_UTTERANCE_SECONDS = 4.0
"""The mean duration of an utterance, roughly."""
_SPEAKER_HOURS = 30.0
"""Audio of round 0 that the speaker encoder learns from."""
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
    parser.add_argument("step", choices=_STEPS)
    parser.add_argument("--out", type=Path, required=True, help="directory of the run")
    parser.add_argument("--preset", choices=_PRESETS, default="full")
    parser.add_argument("--seconds", type=float, default=math.inf, help="time limit; run again to resume")
    for name in ("codec", "speaker", "talker", "finetune", "encoder"):
        parser.add_argument(f"--{name}-steps", type=int, help=f"training steps of `{name}` (default: the preset's)")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="synthesis processes (default: CPU count)")
    parser.add_argument("--round", type=int, default=0, help="round of `codes` (default: 0)")
    parser.add_argument("--device", help="torch device (default: cuda if available, else cpu)")
    parser.add_argument(
        "--checkpoint", help="checkpoint of `speak` and `show`: a directory or `bundled` (default: OUT/checkpoint)"
    )
    parser.add_argument("--random", type=int, default=0, help="number of random corpus sentences to speak as well")
    parser.add_argument("--sentences", type=int, default=4_000, help="number that `durations` speaks (default: 4,000)")
    parser.add_argument("--seed", type=int, default=1, help="of the sentences that `durations` speaks (default: 1)")
    return parser


class Steps:
    """Runs the steps of one command. Each returns True when it is complete, False when the time limit was reached."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.out: Path = args.out
        self.audio = self.out / "audio"
        self.config = _config(args)
        self.device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.corpus_path = self.out / "corpus.txt"
        self.out.mkdir(parents=True, exist_ok=True)

    def time_is_up(self) -> bool:
        """Returns True if `--seconds` have passed."""
        seconds: float = self.args.seconds
        return time.monotonic() - _STARTED > seconds

    def corpus(self) -> bool:
        """Builds the corpus, unless it exists."""
        if not self.corpus_path.exists():
            corpus.write(self.corpus_path, corpus.build(self.config.corpus, Path("/"), _log))
        _log(f"corpus: {corpus.digest(self.corpus_path)}")
        return True

    def _shards(self, number: int) -> Generator[Path]:
        workers = self.args.workers
        return synthesis.make_round(self.config.synthesis, self.corpus_path, self.audio, number, workers, _log)

    def codes(self) -> bool:
        """Synthesizes a round and encodes it; keeps the codes and deletes the audio."""
        number = self.args.round
        trained, encoder = codec.load(self.config, self.out, self.device), self._speaker_encoder(self.device)
        codes.encode_round(trained, encoder, self._shards(number), codes.codes_path(self.out, number), self.device)
        codes.delete_audio(self.audio, number)
        return True

    def codec(self) -> bool:
        """Trains the codec on the first hours of round 0 while the rest is synthesized."""
        shards = self._shards(0)
        audio = codec_loss.load_audio(shards, self.config.codec.hours, self.device)
        finished = codec.train(self.config, audio, self.out, self.device, self.time_is_up, _log)
        for _ in shards:
            pass
        return finished

    def _speaker_trainer(self, device: torch.device) -> speaker.Trainer:
        model = checkpoint.model_config(self.config, self._tokenizer())
        return speaker.Trainer(self.config, model.talker_config.hidden_size, self.out, device)

    def _speaker_encoder(self, device: torch.device) -> SpeakerEncoder | None:
        """Returns the frozen speaker encoder; None without voice cloning. Raises ValueError if it is not trained."""
        if self.config.cloning is None:
            return None
        trainer = self._speaker_trainer(device)
        if not is_finished(trainer.run.path):
            raise ValueError(f"{trainer.run.path}: run the step `speaker` first")
        return trainer.encoder.eval().requires_grad_(False)

    def speaker(self) -> bool:
        """Trains the speaker encoder on round 0."""
        trainer = self._speaker_trainer(self.device)
        if trainer.run.finished:
            return True
        audio = codec_loss.load_audio(self._shards(0), _SPEAKER_HOURS, self.device)
        return trainer.train(audio, self.time_is_up, _log)

    def encoder(self) -> bool:
        """Trains the encoder of voice cloning on the codec's audio."""
        trainer = reference_encoder.Trainer(self.config, self.out, self.device)
        if trainer.run.finished:
            return True
        teacher = codec.load_teacher(self.config, self.out, self.device)
        audio = codec_loss.load_audio(self._shards(0), self.config.codec.hours, self.device)
        return trainer.train(teacher, audio, self.time_is_up, _log)

    def _last_shards(self) -> Generator[Path]:
        """Yields the shards of a round that the talker does not learn from, about as many as the codec needs."""
        settings = self.config.synthesis
        count = math.ceil(self.config.codec.hours * 3600 / _UTTERANCE_SECONDS)
        fewer = replace(settings, sentences_per_round=min(count, settings.sentences_per_round))
        workers = self.args.workers
        return synthesis.make_round(fewer, self.corpus_path, self.audio, settings.rounds, workers, _log)

    def _tokenizer(self) -> Path:
        """Returns the directory of the tokenizer, which is trained if it does not exist."""
        directory = self.out / "tokenizer"
        if not (directory / "tokenizer_config.json").exists():
            texts = (sentence.text for sentence in corpus.read(self.corpus_path))
            checkpoint.train_tokenizer(texts, self.config.talker.merges, directory)
        return directory

    def talker(self) -> bool:
        """Trains the talker; the next round of codes is made in the background."""
        args, sentences = self.args, corpus.read(self.corpus_path)
        self._tokenizer()
        options = ["--out", str(self.out), "--preset", args.preset, "--workers", str(max(1, args.workers - 2))]
        options += ["--device", args.device] if args.device else []
        with codes.round_loader(self.out, self.config.synthesis.rounds, options, _log) as load_round:
            trainer = talker.Trainer(self.config, self.out, self.device)
            return trainer.train(sentences, load_round, self.time_is_up, _log)

    def finetune(self) -> bool:
        """Fine-tunes the decoder on a round that the talker does not learn from. It may run beside `talker`."""
        if codec.is_finetuned(self.out, self.config.codec.finetune_steps):
            return True
        audio = codec_loss.load_audio(self._last_shards(), self.config.codec.hours, self.device)
        finished = codec.train(self.config, audio, self.out, self.device, self.time_is_up, _log, decoder_only=True)
        if finished:
            codes.delete_audio(self.audio, self.config.synthesis.rounds)
        return finished

    def export(self) -> bool:
        """Writes the checkpoint of the current state of training."""
        cpu = torch.device("cpu")
        trainer = talker.Trainer(self.config, self.out, cpu)
        trained, speaker_encoder = codec.load(self.config, self.out, cpu), self._speaker_encoder(cpu)
        path = self.out / "checkpoint"
        size = export.export(self.config, trainer.talker, trained, speaker_encoder, self.out / "tokenizer", path)
        _log(f"export: {self.out / 'checkpoint'}: {size} bytes after {trainer.run.step} steps")
        return True

    def durations(self) -> bool:
        """Measures the durations of a checkpoint's speech, and writes them to it."""
        args, speaker = self.args, self._speaker()
        drawn = durations.utterances(args.sentences, list(self.config.synthesis.speakers), speaker.languages, args.seed)
        spoken = speaker.speak(drawn)
        found = durations.fit(spoken)
        for line in durations.beyond(spoken, found):
            _log(f"durations: {line}")
        directory = checkpoint_directory(args.checkpoint or str(self.out / "checkpoint"))
        durations.save(found, directory / "generation_config.json")
        _log(f"durations: {found}")
        return True

    def speak(self) -> bool:
        """Speaks the held-out sentences in the checkpoint's languages; passes espeak-ng's through the trained codec."""
        speaker, voices, spoken = self._speaker(), list(self.config.synthesis.speakers), self.out / "spoken"
        sets = {name: corpus.held_out(name) for name, each in corpus.HELD_OUT.items() if each in speaker.languages}
        if self.args.random:
            sentences = [each for each in corpus.read(self.corpus_path) if each.language in speaker.languages]
            sets["random"] = random.Random(self.config.corpus.seed).sample(sentences, self.args.random)
        clones = self.config.cloning is not None
        for case in clone.CASES if clones else cases(voices):
            if case.sentences in sets:
                utterances = self._utterances(case, sets[case.sentences])
                write(spoken / f"{case.name}.msgpack", speaker.speak(utterances))
                _log(f"speak: {case.name}")
        if not self.args.checkpoint and (self.out / "codec.pt").exists():
            trained = codec.load(self.config, self.out, self.device)
            pairs = [*((voice, "templates") for voice in voices), (voices[0], "german")]
            for voice, name in [(clone.UNSEEN, "templates")] if clones else pairs:
                utterances = self._utterances(Case(voice, False, name), corpus.held_out(name))
                decoded = speaker.reconstruct(utterances, trained, self.config.synthesis)
                write(spoken / f"codec-{voice}-{name}.msgpack", decoded)
                _log(f"speak: codec-{voice}-{name}")
        return True

    def _utterances(self, case: Case, sentences: list[Sentence]) -> list[Utterance]:
        if self.config.cloning is not None:
            return clone.utterances(case, sentences, self.config.synthesis)
        return case_utterances(case, sentences)

    def score(self) -> bool:
        """Scores the generated speech."""
        from training.judging import score
        from training.judging.intelligibility import Recognizer
        from training.judging.similarity import Verifier

        verifier = None if self.config.cloning is None else Verifier()
        recognizers = {}
        for name, language in corpus.HELD_OUT.items():
            if language == "english":
                texts = [sentence.text for sentence in corpus.held_out(name)]
                recognizers[name] = Recognizer(texts), Recognizer(texts, plain=True)
        scores = []
        for path in sorted((self.out / "spoken").glob("*.msgpack")):
            pair = recognizers.get(path.stem.rpartition("-")[2])
            scores.append(score.score(path.stem, read(path), pair, self.config.synthesis, verifier))
            _log(f"score: {path.stem}: {scores[-1].identified}, {scores[-1].nearest}, {scores[-1].segments}")
        score.write(self.out, scores)
        print(score.table(scores))
        return True

    def show(self) -> bool:
        """Writes audio files and spectrograms of a few sentences."""
        speaker = self._speaker()
        utterances = {
            case.name: self._utterances(case, corpus.held_out(case.sentences)[:1])[0]
            for case in (SHOWN if self.config.cloning is None else clone.CASES)
            if corpus.HELD_OUT[case.sentences] in speaker.languages
        }
        show(speaker, utterances, self.out / "shown")
        return True

    def _speaker(self) -> Speaker:
        return Speaker(self.args.checkpoint or str(self.out / "checkpoint"), self.device)

    def all(self) -> bool:
        """Runs all steps up to the checkpoint, skipping those that are complete."""
        # The codec's audio is not needed any more once round 0 is encoded.
        clones = self.config.cloning is not None
        encoded = codes.codes_path(self.out, 0).exists()
        has_codec = self.corpus() and (
            encoded or (self.codec() and (not clones or (self.speaker() and self.encoder())))
        )
        trained = has_codec and self.talker() and self.finetune()
        if (self.out / "talker.pt").exists():
            self.export()
        return trained


def _config(args: argparse.Namespace) -> TrainingConfig:
    config = _PRESETS[args.preset]
    codec_config = replace(
        config.codec,
        steps=args.codec_steps or config.codec.steps,
        finetune_steps=args.finetune_steps or config.codec.finetune_steps,
    )
    talker_config = replace(config.talker, steps=args.talker_steps or config.talker.steps)
    return replace(config, codec=codec_config, talker=talker_config, cloning=_cloning_config(args, config.cloning))


def _cloning_config(args: argparse.Namespace, cloning: CloningConfig | None) -> CloningConfig | None:
    """Raises ValueError for steps of a training that the preset does not have."""
    if cloning is not None:
        return replace(
            cloning,
            speaker_steps=args.speaker_steps or cloning.speaker_steps,
            encoder_steps=args.encoder_steps or cloning.encoder_steps,
        )
    for name in ("speaker", "encoder"):
        if getattr(args, f"{name}_steps"):
            raise ValueError(f"--{name}-steps: the preset {args.preset} does not clone voices; base and base-smoke do")
    return None


def main(arguments: list[str]) -> int:
    """Runs one step; returns the exit status."""
    torch.set_float32_matmul_precision("high")
    # Functions that fail to compile run eagerly.
    torch._dynamo.config.suppress_errors = True
    steps = Steps(build_parser().parse_args(arguments))
    finished: bool = getattr(steps, steps.args.step)()
    if not finished:
        _log("time limit reached: run the same command again to resume")
    return 0 if finished else UNFINISHED
