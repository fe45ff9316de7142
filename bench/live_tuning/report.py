"""The results as a file, a page and a plot."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from msgspec import Struct

from live_tuning.draws import Load, Phase
from live_tuning.scores import HALF_MINUTE, by_half_minute, never_below, seconds_after_shift, seconds_until, share
from live_tuning.service import Result
from syrinx_operator.commands.bench.report import markdown
from syrinx_operator.local.machine import Machine
from syrinx_operator.resource.knobs import Setting

METHODS = ("untouched", "tuned", "defaults")
COLUMNS = (
    *("start", "load", *METHODS, "95 % after", "never below start"),
    *(f"shift: {METHODS[0]}", *METHODS[1:], "back after", "at the end", "same audio"),
)


class HalfMinutes(Struct, frozen=True, kw_only=True):
    """Requests that arrived in each half minute, and their shares served well."""

    requests: tuple[int, ...]
    tuned: tuple[float, ...]
    untouched: tuple[float, ...]
    defaults: tuple[float, ...]

    def share(self, method: str, part: slice = slice(None)) -> float:
        """Returns the share of a method in some half minutes."""
        shares: tuple[float, ...] = getattr(self, method)
        requests = self.requests[part]
        return sum(count * each for count, each in zip(requests, shares[part], strict=True)) / max(1, sum(requests))


class StartResult(Struct, frozen=True, kw_only=True):
    """A bad start under a load."""

    start: Setting
    load: str
    shift: int
    """The first half minute after the shift of the load."""
    seconds_to_95: float | None
    """Until 95 % of what the defaults serve well, for a minute; None: never."""
    never_below_start: bool
    """No half minute but the first is worse than with the untouched start, by more than chance explains."""
    after_shift_seconds: float | None
    """From the shift until 95 % of what the defaults serve well, and of the own share before; None: never."""
    by_half_minute: HalfMinutes
    chosen: Setting | None
    """The tuner's setting at the end; None: the start."""
    decisions: tuple[tuple[float, str], ...]
    """Of the tuner: seconds from the start, and the reason."""
    bytes_equal: bool
    """All samples of a text are bit for bit the same, with the tuner and under the defaults."""
    samples: int


class Report(Struct, frozen=True, kw_only=True):
    """The content of `tuning_live.json`. Shares of requests served well are means of all runs."""

    created: str
    """UTC, ISO 8601."""
    revision: str | None
    command: str
    machine: Machine
    service_cores: int
    """Cores of each service."""
    capacity: float
    """Requests per second of the defaults in a closed loop."""
    objective_seconds: float
    loads: tuple[Load, ...]
    rejected: int
    """Drawn settings that were not bad."""
    defaults: float
    tuned: float
    untouched: float
    starts: tuple[StartResult, ...]


def start_result(start: Setting, load: Load, results: Mapping[str, Result], objective: float) -> StartResult:
    """Returns the scores of a start. results: by method. objective: in seconds."""
    seconds = sum(phase.seconds for phase in load.phases)
    parts = {name: by_half_minute(result.requests, seconds) for name, result in results.items()}
    shares = {name: tuple(share(part, objective) for part in each) for name, each in parts.items()}
    counts, tuned, untouched = tuple(map(len, parts["tuned"])), shares["tuned"], shares["untouched"]
    shift = round(load.phases[0].seconds / HALF_MINUTE)
    phases = (slice(1, shift), slice(shift, None))
    audio = {*results["tuned"].samples, *results["defaults"].samples}
    return StartResult(
        start=start,
        load=load.name,
        shift=shift,
        seconds_to_95=seconds_until(tuned[:shift], shares["defaults"][:shift]),
        never_below_start=all(never_below(tuned[part], untouched[part], counts[part]) for part in phases),
        after_shift_seconds=seconds_after_shift(tuned, shares["defaults"], shift),
        by_half_minute=HalfMinutes(requests=counts, **shares),
        chosen=results["tuned"].chosen,
        decisions=results["tuned"].decisions,
        bytes_equal=len(audio) == len({index for index, _ in audio}),
        samples=len(results["tuned"].samples),
    )


def page(report: Report) -> str:
    """Returns the report as Markdown."""
    before, after = (phase.seconds / 60 for phase in report.loads[0].phases)
    loads = "\n".join(f"- {load.name}: {', then '.join(map(_phase, load.phases))}." for load in report.loads)
    overall = ", ".join(f"{name} {getattr(report, name):.1%}" for name in METHODS)
    return f"""# The live tuner from bad settings

`syrinx up` with the bundled voice on {report.service_cores} cores of {report.machine.cpu}, a real Redis and real
clients, measured by `{report.command}` at {report.created}. The starts are drawn settings that serve at least 10 points
fewer requests well than the defaults ({report.rejected} others were rejected). Each runs for {before:g} minutes under
two loads, in shares of the {report.capacity:g} requests/s that the defaults complete in a closed loop, and for
{after:g} minutes after a shift:

{loads}

A request is served well if it is audible within {1000 * report.objective_seconds:g} ms and played without a gap. All
three get the same requests; only one is tuned. 95 % after: until the tuner serves 95 % of what the defaults serve well,
for a minute. Back after: the same from the shift on, and 95 % of its own share before. Never below start: no half
minute but the first is worse than the untouched start by more than three standard errors. Settings:
`talker.maxNumSeqs / codec.maxNumSeqs, first chunk's frames`. Same audio: samples, compared byte for byte with those
under the defaults.

{markdown(COLUMNS, map(_row, report.starts))}

Mean of all runs: {overall} of the requests are served well.

![Requests served well by half minute](tuning_live.png)
"""


def _phase(phase: Phase) -> str:
    bursts = f" in bursts of {phase.burst}" if phase.burst > 1 else ""
    texts = f" of the {phase.texts} of the texts" if phase.texts != "all" else ""
    return f"{phase.rate:.1f} requests/s{bursts}{texts}"


def _row(each: StartResult) -> list[str]:
    before, after = (
        [f"{each.by_half_minute.share(name, part):.1%}" for name in METHODS]
        for part in (slice(each.shift), slice(each.shift, None))
    )
    return [
        *(_short(each.start), each.load, *before, _seconds(each.seconds_to_95)),
        *("yes" if each.never_below_start else "no", *after, _seconds(each.after_shift_seconds)),
        *(_short(each.chosen or each.start), f"{'all' if each.bytes_equal else 'not all'} of {each.samples}"),
    ]


def _seconds(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.0f} s"


def _short(setting: Setting) -> str:
    return f"{setting.talker_max_num_seqs} / {setting.codec_max_num_seqs}, {setting.chunk_ramp[0]}"


def plot(results: Sequence[StartResult], file: Path) -> None:
    """Plots the shares by half minute: a row for each start, a column for each load."""
    columns = len({each.load for each in results})
    rows = len(results) // columns
    figure = Figure(figsize=(5 * columns, 2.2 * rows + 0.6), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axes, each in zip(panels.flat, results, strict=True):
        for name, color in zip(METHODS, ("tab:red", "tab:blue", "tab:gray"), strict=True):
            shares = getattr(each.by_half_minute, name)
            minutes = [(at + 0.5) * HALF_MINUTE / 60 for at in range(len(shares))]
            axes.plot(minutes, [100 * share for share in shares], color=color, label=name)
        axes.axvline(each.shift * HALF_MINUTE / 60, color="black", linestyle=":")
        axes.set_title(f"{_short(each.start)}; load {each.load}", fontsize=9)
        axes.set_xlim(left=0)
        axes.set_ylim(0, 103)
    figure.supxlabel("minutes; dotted: shift of the load", fontsize=9)
    figure.supylabel("requests served well (%)", fontsize=9)
    panels[0][0].legend(fontsize=8)
    figure.savefig(file, dpi=110)
