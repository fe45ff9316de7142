"""`syrinx tune --what-if`: how well the replicas would serve a given load. Pure; takes seconds."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from syrinx_operator.commands.tune.view import TuneError, View
from syrinx_operator.resource.knobs import Knob, Setting, format_value
from syrinx_operator.resource.state.tuning_status import Measured
from syrinx_operator.tuner.model.captures import call_times
from syrinx_operator.tuner.model.curves import learned_frames, step_seconds
from syrinx_operator.tuner.model.plan import Answer, Question, plan
from syrinx_operator.tuner.model.playing import FRAME_SECONDS
from syrinx_operator.tuner.model.whatif import Load, plant_of
from syrinx_operator.tuner.policy import Policy, policy_of
from syrinx_stages.contract.family import FAMILY

MAX_REPLICAS = 1024


class WhatIf(Struct, frozen=True, kw_only=True):
    """A load, and the replicas that serve it. What is None is as it is now."""

    rate: float
    """Requests per second."""
    mix: Mapping[str, float] | None = None
    """Shares of the task types; their sum need not be 1."""
    frames: float | None = None
    """Mean frames of a request."""
    burst: float = 1.0
    """Mean requests of an arrival; 1 is a Poisson process."""
    reference: float = 0.0
    """Frames of a voice clone's reference, which the codec decodes first."""
    talkers: int | None = None
    codecs: int | None = None


def parse_what_if(text: str) -> WhatIf:
    """Parses `KEY=VALUE,...`. A part without `=` is a further task type of `mix`. Raises TuneError."""
    values: dict[str, Any] = {}
    key = ""
    for part in text.split(","):
        name, separator, value = part.partition("=")
        if separator:
            key = name.strip().lower()
            if key not in _PARSERS:
                raise TuneError(f"--what-if: {key!r} is not a key; there are {', '.join(_PARSERS)}")
            if key in values:
                raise TuneError(f"--what-if: {key} is given twice")
        elif key != "mix":
            raise TuneError(f"--what-if: {part.strip()!r} is not KEY=VALUE" + (f" (after {key})" if key else ""))
        found = _PARSERS[key](key, (value if separator else part).strip())
        values[key] = _joined(values[key], found) if key in values else found
    if "rate" not in values:
        raise TuneError("--what-if: rate is missing, for example rate=40")
    return WhatIf(**values)


def _joined(shares: Mapping[str, float], more: Mapping[str, float]) -> Mapping[str, float]:
    if twice := shares.keys() & more.keys():
        raise TuneError(f"--what-if: mix: {twice.pop()} is given twice")
    return {**shares, **more}


def _number(least: float, *, above: bool = False) -> Callable[[str, str], float]:
    def parse(key: str, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not (number > least if above else number >= least) or number == math.inf:
            wanted = f"above {least:g}" if above else f"from {least:g}"
            raise TuneError(f"--what-if: {key}: {text!r} is not a number {wanted}")
        return number

    return parse


def _replicas(key: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_REPLICAS):
        raise TuneError(f"--what-if: {key}: {text!r} is not an integer from 1 to {MAX_REPLICAS}")
    return int(text)


def _share(key: str, text: str) -> Mapping[str, float]:
    name, separator, share = text.partition(":")
    if not separator:
        raise TuneError(f"--what-if: {key}: {text!r} is not TYPE:SHARE")
    task_type = next((each for each in FAMILY.task_types if each.lower() == name.strip().lower()), None)
    if task_type is None:
        raise TuneError(f"--what-if: {key}: {name!r} is no task type; there are {', '.join(FAMILY.task_types)}")
    return {task_type: _number(0, above=True)(f"{key}: {task_type}", share)}


_PARSERS: Mapping[str, Callable[[str, str], Any]] = {
    "rate": _number(0, above=True),
    "mix": _share,
    "frames": _number(1),
    "burst": _number(1),
    "reference": _number(0),
    "talkers": _replicas,
    "codecs": _replicas,
}


def what_if_lines(view: View, asked: WhatIf) -> list[str]:
    """Returns the answer as text, one string per line. Raises TuneError."""
    question = question_of(view, asked)
    answer = plan(question)
    uses = [least_use(question, each.setting) for each in (answer.current, answer.best)]
    lines = [*_premises(question), "", *_comparison(answer, uses)]
    if max(uses[1]) > 1:
        lines += ["", "The load exceeds the capacity of these replicas: fewer and fewer requests would be served well."]
    return lines


def question_of(view: View, asked: WhatIf) -> Question:
    """Returns the question to the model. Raises TuneError if something that it depends on is not known."""
    measured = view.state.measured
    if view.pipeline is None:
        raise TuneError(f"the resource of {view.name} cannot be read: start it again")
    if not measured.is_known:
        raise TuneError(f"the engine times of {view.name} are not known yet: send it requests for some minutes")
    policy = policy_of(view.pipeline)
    mix = asked.mix or _mix(measured, policy)
    rates = {task_type: asked.rate * share / sum(mix.values()) for task_type, share in mix.items()}
    talkers = asked.talkers or view.talkers
    is_colocated = policy.colocated
    if is_colocated and asked.codecs not in (None, talkers):
        raise TuneError("--what-if: codecs: with topology Colocated there is one in each talker")
    return Question(
        load=Load(rates=rates, frames=asked.frames or mean_frames(measured), burst=asked.burst),
        plant=plant_of(
            policy,
            talkers,
            talkers if is_colocated else asked.codecs or view.codecs,
            {"Base": asked.reference} if "Base" in rates else {},
        ),
        measured=measured,
        current=view.in_force,
        rows=policy.rows,
        ramps=policy.ramps,
    )


def _mix(measured: Measured, policy: Policy) -> Mapping[str, float]:
    """Returns the measured requests by task type, or the only task type of the objectives. Raises TuneError."""
    if served := {each.task_type: each.count for each in measured.prepares}:
        return served
    if len(policy.objectives) != 1:
        raise TuneError("--what-if: mix is missing, for example mix=Base:1,CustomVoice:3")
    return dict.fromkeys(policy.objectives, 1.0)


def mean_frames(measured: Measured) -> float:
    """Returns the mean frames of the requests of which the engine times were learned.

    Each row of a talker's step is a frame, and each prefill a request. Raises TuneError.
    """
    if not measured.prefills:
        raise TuneError("--what-if: frames is missing, and no request was measured")
    return max(1.0, learned_frames(measured) / measured.prefills)


def _premises(question: Question) -> list[str]:
    load, plant = question.load, question.plant
    types = ", ".join(f"{name} {rate / load.rate:.0%}" for name, rate in load.rates.items())
    bursts = "Poisson arrivals" if load.burst == 1 else f"{load.burst:g} requests an arrival"
    audio = f"{load.frames:.0f} frames ({load.frames * FRAME_SECONDS:.1f} s) of audio a request"
    reference = plant.reference.get("Base", 0.0)
    after = f", after {reference:.0f} frames of a reference" if reference else ""
    return [
        f"{load.rate:g} requests/s ({types}), {bursts}, {audio}{after}",
        f"talkers: {plant.talkers}, codecs: {plant.codecs}",
    ]


def least_use(question: Question, setting: Setting) -> tuple[float, float]:
    """Returns the utilization of talkers and codecs if all steps and calls are full: it cannot be less for long."""
    load, plant, measured = question.load, question.plant, question.measured
    rows = setting.talker_max_num_seqs
    per_request = load.frames * step_seconds(measured, rows)[rows] / rows
    per_request += measured.prefill_seconds / max(measured.prefills, 1.0)
    rows, frames = setting.codec_max_num_seqs, max(setting.chunk_ramp)
    per_frame = call_times(measured.calls, setting.capture_pairs).at(rows, frames) / (rows * frames)
    reference = sum(rate * plant.reference.get(name, 0.0) for name, rate in load.rates.items())
    decoded = load.rate * load.frames + reference
    return load.rate * per_request / plant.talkers, decoded * per_frame / plant.codecs


def _comparison(answer: Answer, uses: Sequence[tuple[float, float]]) -> list[str]:
    """Returns a table of the setting in force and the best one."""
    both = (answer.current, answer.best)
    table = {"": ["in force", "best"]}
    table |= {knob.value: [format_value(each.setting, knob) for each in both] for knob in Knob if knob != Knob.PAIRS}
    table["served well"] = [f"{each.well:.1%}" for each in both]
    for n, stage in enumerate(("talkers", "codecs")):
        table[f"{stage} busy, at least"] = [f"{use[n]:.0%}" for use in uses]
    table["engine s per s of audio"] = [f"{each.busy:.3g}" for each in both]
    width = 2 + max(len(current) for current, _ in table.values())
    return [f"  {name:<25}{current:<{width}}{best}" for name, (current, best) in table.items()]
