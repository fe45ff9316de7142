"""The results as a file and as a table."""

import datetime
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from guard.clips import FOUND_FRAMES, Clip, Speaker
from guard.planted import Kind
from syrinx_operator.commands.bench.report import markdown, save
from syrinx_operator.local.machine import Machine, describe, publishable_command, revision
from syrinx_stages.contract.family import FAMILY

COLUMNS = ("checkpoint", "planted", "clips", "found", "found by", "median s", "max s", "missed")
RESULTS = Path(__file__).parents[1] / "results"
MAX_NAMED = 10


class Case(Struct, frozen=True, kw_only=True):
    """What was planted of one kind with one checkpoint."""

    checkpoint: str
    kind: Kind
    planted: int
    found: int
    """Before a listener gets more than two seconds of the plant."""
    faults: dict[str, int]
    """What the found ones were found by."""
    median_seconds: float | None
    max_seconds: float | None
    """Audio after the plant that a listener gets, of the found ones."""
    missed: list[str]
    """Texts of clips that were not found in time, or stopped before the plant."""

    @classmethod
    def of(cls, checkpoint: str, kind: Kind, clips: Sequence[Clip]) -> "Case":
        """Returns the case of planted clips that have been spoken."""
        found = [clip for clip in clips if clip.is_found]
        delays = sorted(
            max(0, clip.released - each.start) * FAMILY.frame_seconds for clip in found if (each := clip.plant)
        )
        return cls(
            checkpoint=checkpoint,
            kind=kind,
            planted=len(clips),
            found=len(found),
            faults=dict(Counter(str(clip.fault) for clip in found)),
            median_seconds=round(delays[len(delays) // 2], 2) if delays else None,
            max_seconds=round(delays[-1], 2) if delays else None,
            missed=[clip.request.text for clip in clips if not clip.is_found][:MAX_NAMED],
        )


class Cost(Struct, frozen=True):
    """What the checks cost on a CPU."""

    frames: int
    frame_ms: float
    """Time of a frame of one row in the engine, in batches."""
    check_us: float
    """Time of a frame for the checks."""
    share: float
    """The same, as a part of the frame's time."""

    @classmethod
    def of(cls, speaker: Speaker) -> "Cost":
        """Returns the cost of all that a speaker has spoken."""
        each = 1 / max(1, speaker.frames)
        return cls(
            frames=speaker.frames,
            frame_ms=round(1e3 * each * speaker.step_seconds, 3),
            check_us=round(1e6 * each * speaker.check_seconds, 2),
            share=round(speaker.check_seconds / max(1e-9, speaker.step_seconds), 5),
        )


class Texts(Struct):
    """What a judge found in texts of several sentences, spoken by a pipeline."""

    texts: int = 0
    texts_incomplete: int = 0
    """Those in which a sentence is missing."""
    sentences: int = 0
    missing: list[str] = []
    """The first of them."""
    finish_reasons: dict[str, int] = {}
    longest_over_needed: float = 0.0
    """The duration of the longest text, as a multiple of that of espeak-ng's reading."""
    sentence_over_needed: tuple[float, float] = (1.0, 1.0)
    """The same of the shortest and the longest sentence that was found."""
    longest: str = ""
    """The latter."""

    def add(
        self, missing: Sequence[str], over_needed: Mapping[str, float], text_over_needed: float, finish_reason: str
    ) -> None:
        """Adds a text. over_needed: durations of the sentences that were found."""
        self.texts += 1
        self.texts_incomplete += bool(missing)
        self.sentences += len(missing) + len(over_needed)
        shortest, longest = self.sentence_over_needed
        for sentence, over in over_needed.items():
            if over > longest:
                longest, self.longest = over, sentence
            shortest = min(shortest, over)
        self.sentence_over_needed = shortest, longest
        self.longest_over_needed = max(self.longest_over_needed, text_over_needed)
        self.missing = [*self.missing, *missing][:MAX_NAMED]
        self.finish_reasons[finish_reason] = self.finish_reasons.get(finish_reason, 0) + 1


class Service(Struct, frozen=True):
    """The checks' cost for a service at 64 clients at once, from pairs of runs with and without them."""

    gpu: str
    model: str
    with_checks: list[float]
    without: list[float]
    """Seconds of audio in a second, of each run."""


class Made(Struct, frozen=True):
    """How a part of the results was made."""

    command: str
    created: str
    """UTC, ISO 8601."""
    revision: str | None

    @classmethod
    def now(cls, module: str) -> "Made":
        """Returns the origin of what this process has measured."""
        created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return cls(publishable_command(f"python -m {module}", sys.argv[1:]), created, revision())


class Report(Texts, kw_only=True):
    """The results of a run. Others add the texts and the cost for a service."""

    made: dict[str, Made]
    """By part: segments, texts, service."""

    cost_at_64: float | None = None
    """Share of the throughput that the checks take."""
    service: Service | None = None
    machine: Machine
    """That of the segments."""
    planted: int
    found: int
    segments: int
    """Healthy sentences of the bundled voice."""
    false_stops: int
    """Those that a talker would retry."""
    stops: list[str]
    """Why, with their texts."""
    cost: Cost
    cases: list[Case]


def report(cases: list[Case], healthy: Sequence[Clip], cost: Cost) -> Report:
    """Returns the report of a run on this machine that ends now."""
    stops = [f"{clip.fault} at frame {len(clip.codes)}: {clip.request.text}" for clip in healthy if clip.fault]
    return Report(
        made={"segments": Made.now("guard")},
        machine=describe(),
        planted=sum(case.planted for case in cases),
        found=sum(case.found for case in cases),
        segments=len(healthy),
        false_stops=len(stops),
        stops=stops[:MAX_NAMED],
        cost=cost,
        cases=cases,
    )


def write(result: Report, directory: Path) -> None:
    """Writes guard.json and guard.md."""
    save(result, directory / "guard.json")
    (directory / "guard.md").write_text(_table(result), encoding="utf-8")


def _table(result: Report) -> str:
    """Returns the report as Markdown."""
    cost, machine = result.cost, result.machine
    seconds = FOUND_FRAMES * FAMILY.frame_seconds
    stops = "".join(f"\n- {stop}" for stop in result.stops)
    return (
        "# Segments that go wrong\n\n"
        f"{result.found} of {result.planted} planted faults were found before a listener gets {seconds:.0f} s of them "
        f"({result.found / max(1, result.planted):.2%}); {result.false_stops} of {result.segments} healthy "
        f"sentences of the bundled voice would be retried.{stops}\n\n"
        "Clips are spoken by the talker's engine on a CPU; `python -m guard` plants what goes wrong into its\n"
        "sampling. The checkpoints have the weights of the bundled voice, as each type, or random ones. The bounds of\n"
        "the former are those of the bundled voice, of the latter those of a checkpoint without `durations`.\n\n"
        f"{markdown(COLUMNS, map(_cells, result.cases))}\n\n"
        f"{_texts(result)}"
        f"Cost: a frame of one row takes {cost.frame_ms} ms; the checks take {cost.check_us} µs "
        f"of it, {cost.share:.2%}.{_service(result)}\n\n"
        f"{machine.cores} cores of {machine.cpu}, Python {machine.python}.\n\n"
        f"{markdown(('part', 'command', 'revision', 'made at'), map(_origin, result.made.items()))}\n"
    )


def _origin(part: tuple[str, Made]) -> list[str]:
    name, made = part
    return [name, f"`{made.command}`", made.revision or "", made.created]


def _texts(result: Texts) -> str:
    if not result.texts:
        return ""
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(result.finish_reasons.items()))
    missing = "".join(f"\n- {sentence}" for sentence in result.missing)
    shortest, longest = result.sentence_over_needed
    named = f" ({result.longest})" if result.longest else ""
    return (
        f"{result.texts} texts with {result.sentences} sentences in all were spoken as streams ({reasons}); in "
        f"{result.texts_incomplete} a sentence was not found.{missing}\n\n"
        f"No text lasts longer than {result.longest_over_needed:.2f} times espeak-ng's reading; sentences last "
        f"{shortest:.2f} to {longest:.2f} times as long{named}.\n\n"
    )


def _service(result: Report) -> str:
    if result.service is None or result.cost_at_64 is None:
        return ""
    service = result.service
    pairs = ", ".join(f"{a:.0f} / {b:.0f}" for a, b in zip(service.with_checks, service.without, strict=True))
    return (
        f"\n\nWith {service.model} on {service.gpu}, 64 clients at once get {pairs} s of audio in a second with and "
        f"without the checks: they cost {result.cost_at_64:.1%}."
    )


def _cells(case: Case) -> list[str]:
    found_by = ", ".join(f"{name} {count}" for name, count in sorted(case.faults.items()))
    median, longest = (("" if value is None else f"{value:.2f}") for value in (case.median_seconds, case.max_seconds))
    missed = str(case.planted - case.found)
    return [case.checkpoint, case.kind, str(case.planted), str(case.found), found_by, median, longest, missed]
