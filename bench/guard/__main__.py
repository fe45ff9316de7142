"""`python -m guard`: plants faults, speaks healthy sentences, and writes results/guard.json and guard.md.

Run it in the project's root with PYTHONPATH=bench:tests. Needs nothing but one core of the CPU: a second for about 14
sentences.
"""

import argparse
import itertools
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from msgspec import structs

from guard import checkpoints
from guard.clips import Clip, Speaker
from guard.planted import Kind, draw
from guard.report import RESULTS, Case, Cost, report, write
from support import small_checkpoint
from syrinx_stages.contract.messages import SpeechRequest, TaskType
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.describe import describe
from syrinx_stages.normalization.durations import Durations, bounds
from syrinx_stages.normalization.normalize import normalize
from training.data.corpus import HELD_OUT, Sentence, finish, held_out
from training.data.grammar import Grammar

VOICES = ("us", "us_f", "us_m", "gb")
DURATIONS = describe("bundled").reading.durations
PRINT_EVERY = 500
"""Sentences between two lines of output."""
SEEDS_OF_A_RUN = 1_000_000
"""Clips have consecutive seeds, from this many times the run's on."""
RANDOM_FRAMES = 60
"""A checkpoint with random weights never ends; the plant begins within so many frames."""


def sentences(number: int, rng: random.Random) -> Iterator[Sentence]:
    """Yields random sentences of the grammars and of the held-out sets."""
    grammars = {language: Grammar(language, rng, []) for language in ("english", "german")}
    fixed = [sentence for name in HELD_OUT for sentence in held_out(name)]
    for _ in range(number):
        language = rng.choices(("english", "german", "held out"), (0.7, 0.15, 0.15))[0]
        if language == "held out":
            yield rng.choice(fixed)
            continue
        yield Sentence(finish(Sentence(grammars[language].sentence(), language)).text, language)


def request(number: int, task: TaskType, sentence: Sentence, rng: random.Random) -> SpeechRequest:
    """Returns the request for a sentence; its number is its seed."""
    voice = rng.choice(VOICES) if sentence.language == "english" else VOICES[0]
    return SpeechRequest(
        id=str(number),
        accepted_at=0.0,
        # As talkers do for the bundled voice.
        text=normalize(sentence.text, (sentence.language,)),
        task_type=task,
        voice=voice if task is TaskType.CUSTOM_VOICE else None,
        language=sentence.language,
        has_reference=task is TaskType.BASE,
        x_vector_only=task is TaskType.BASE,
        non_streaming_text=rng.random() < 0.7,
        seed=number,
    )


def silent_code(clips: Sequence[Clip]) -> int:
    """Returns the code 0 that follows itself most often: that of pauses."""
    pairs = (pair for clip in clips for pair in itertools.pairwise(clip.codes))
    repeated = Counter(before for before, now in pairs if before == now)
    return repeated.most_common(1)[0][0]


def plant(
    speaker: Speaker, name: str, kind: Kind, healthy: Sequence[Clip], durations: Durations, rng: random.Random
) -> Case:
    """Plants faults of one kind into clips whose healthy course is known."""
    code = silent_code(healthy) if kind is Kind.SILENCE else 0
    planted = [
        Clip(
            request=clip.request,
            bounds=bounds(clip.request.text, durations, clip.request.voice),
            plant=draw(kind, len(clip.codes), code, rng),
        )
        for clip in healthy
    ]
    case = Case.of(name, kind, list(speaker.speak(planted)))
    print(f"{name}, {kind}: {case.found} of {case.planted} found", flush=True)
    return case


class Voice:
    """The bundled voice as a checkpoint of some type."""

    def __init__(self, directory: Path, task: TaskType, rng: random.Random) -> None:
        self.task, self._rng = task, rng
        self.speaker = Speaker(Checkpoint(str(checkpoints.write(directory / f"{task}", task))))
        self._endless = Speaker(Checkpoint(str(checkpoints.write(directory / f"{task}-endless", task, ends=False))))
        self.spoken: list[Clip] = []

    def speak(self, number: int, first_seed: int) -> None:
        """Speaks `number` healthy sentences."""
        drawn = enumerate(sentences(number, self._rng), first_seed)
        requests = [request(seed, self.task, each, self._rng) for seed, each in drawn]
        clips = (Clip(request=each, bounds=bounds(each.text, DURATIONS, each.voice)) for each in requests)
        for clip in self.speaker.speak(clips):
            self.spoken.append(clip)
            if len(self.spoken) % PRINT_EVERY == 0:
                stops = sum(each.fault is not None for each in self.spoken)
                print(f"{self.task}: {len(self.spoken)} sentences, {stops} false stops", flush=True)

    def plant(self, kind: Kind, number: int) -> Case:
        """Plants faults of one kind into the newest healthy clips."""
        clips = [clip for clip in self.spoken if clip.fault is None and len(clip.codes) > 3][-number:]
        speaker = self._endless if kind is Kind.END_COLLAPSED else self.speaker
        return plant(speaker, self.task, kind, clips, DURATIONS, self._rng)


def measure_random(directory: Path, kind: str, planted: int, rng: random.Random) -> list[Case]:
    """Plants loops and silence with random weights, which have no healthy speech."""
    task = {"custom_voice": TaskType.CUSTOM_VOICE, "voice_design": TaskType.VOICE_DESIGN, "base": TaskType.BASE}[kind]
    checkpoint = Checkpoint(str(small_checkpoint.write(directory / f"random-{kind}", kind)))
    speaker, unknown = Speaker(checkpoint), Durations()
    frames = [rng.randint(4, RANDOM_FRAMES) for _ in range(planted)]
    requests = [request(index, task, each, rng) for index, each in enumerate(sentences(planted, rng))]
    voice = next(iter(checkpoint.config.talker_config.speakers), None)
    clips = [
        Clip(request=_as_voice(each, voice), bounds=bounds(each.text, unknown), codes=[0] * count)
        for each, count in zip(requests, frames, strict=True)
    ]
    return [plant(speaker, f"random {task}", each, clips, unknown, rng) for each in (Kind.LOOP, Kind.SILENCE)]


def _as_voice(request: SpeechRequest, voice: str | None) -> SpeechRequest:
    is_preset = request.task_type is TaskType.CUSTOM_VOICE
    return structs.replace(request, voice=voice if is_preset else None, language="auto")


def measure(number: int, planted: int, seed: int) -> tuple[list[Case], Voice]:
    """Returns what was planted with all types of checkpoints, and the bundled voice after `number` healthy clips."""
    rng, first_seed = random.Random(seed), seed * SEEDS_OF_A_RUN
    cases: list[Case] = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        voices = [Voice(directory, task, rng) for task in (TaskType.CUSTOM_VOICE, TaskType.BASE, TaskType.VOICE_DESIGN)]
        for voice in voices:
            voice.speak(planted, first_seed)
            cases += [voice.plant(kind, planted) for kind in Kind]
        for kind in ("custom_voice", "voice_design", "base"):
            cases += measure_random(directory, kind, planted, rng)
        bundled = voices[0]
        bundled.speak(number - planted, first_seed + planted)
        return cases, bundled


def main() -> None:
    """Measures and writes the results."""
    parser = argparse.ArgumentParser(prog="python -m guard", description=__doc__)
    parser.add_argument("--sentences", type=int, default=10_000, help="of the bundled voice (default: 10,000)")
    parser.add_argument("--planted", type=int, default=100, help="faults of each kind and type (default: 100)")
    parser.add_argument("--seed", type=int, default=24, help="of the sentences and clips (default: 24)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="output directory (default: bench/results)")
    arguments = parser.parse_args()
    # As the stages do: it makes steps independent of the batch.
    torch.set_num_threads(1)
    cases, voice = measure(arguments.sentences, arguments.planted, arguments.seed)
    write(report(cases, voice.spoken, Cost.of(voice.speaker)), arguments.results)


if __name__ == "__main__":
    main()
