"""Parses one replica's `/metrics` (Prometheus text format) into the counters that the tuner needs. Pure.

Names and labels are those of `contract.metrics`. A counter that is not exported is zero. A gateway exports a histogram
for each pair of talker and codec, so parsing skips other lines without inspecting them and caches parsed series.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

from msgspec import Struct

from syrinx_operator.observed.evidence import CaptureCost
from syrinx_stages.contract import metrics as m

MAX_COUNT = 2**53
"""Largest float that counts in steps of one."""

BUCKET = f"{m.TTFA.name}_bucket"
ARRIVALS = f"{m.STREAM_ARRIVALS.name}_bucket"
_BUCKETS = (BUCKET, ARRIVALS)
STARTED = f"{m.FIRST_BYTE.name}_count"


def work_of(name: str) -> tuple[str, str]:
    """Returns the exported names of a histogram's count and sum."""
    return f"{name}_count", f"{name}_sum"


_SHAPE = ("rows", "frames")
_CALL = (*_SHAPE, "result")
_GATEWAY: Mapping[str, tuple[str, ...]] = {
    BUCKET: ("task_type",),
    ARRIVALS: (),
    STARTED: (),
    m.UNDERRUNS.name: ("task_type",),
    m.STREAMS_ACCEPTED.name: ("task_type", "arm"),
    m.STREAM_OUTCOMES.name: ("task_type", "arm", "outcome"),
    **dict.fromkeys(work_of(m.STREAM_CHARACTERS.name), ("task_type",)),
    m.REQUESTS.name: ("task_type", "outcome"),
    m.CANARY_FORWARDS.name: ("outcome",),
    m.LIVE_STREAMS.name: (),
}
_ENGINE: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(work_of(m.STEP_SECONDS.name), ("rows",)),
    m.FRAMES.name: (),
    m.MAX_NUM_SEQS.name: (),
    m.INFO.name: ("device",),
}
WANTED_METRICS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "gateway": _GATEWAY,
    "talker": {
        **_ENGINE,
        **dict.fromkeys(work_of(m.PREPARE_SECONDS.name), ("task_type",)),
        **dict.fromkeys(work_of(m.PREFILL_SECONDS.name), ()),
    },
    "codec": {
        **_ENGINE,
        m.CODEC_CALLS.name: _CALL,
        m.CODEC_CALL_SECONDS.name: _CALL,
        m.CAPTURE_SECONDS.name: _SHAPE,
        m.CAPTURE_BYTES.name: _SHAPE,
    },
}
"""By stage and exported name: the labels that are kept. Others are summed over."""

LABELS = frozenset({"le"}.union(*(labels for stage in WANTED_METRICS.values() for labels in stage.values())))
"""All labels that are kept of any series."""

_GAUGES = frozenset({m.LIVE_STREAMS.name, m.MAX_NUM_SEQS.name, m.INFO.name})
_COSTS = (m.CAPTURE_SECONDS.name, m.CAPTURE_BYTES.name)
"""Gauges by shape."""

_ALWAYS_EXPORTED = {"gateway": m.LIVE_STREAMS.name, "talker": m.MAX_NUM_SEQS.name, "codec": m.MAX_NUM_SEQS.name}
"""A metric that every replica of the stage exports from its start, and no other stage does."""


class Series(NamedTuple):
    """Identifies one counter."""

    name: str
    labels: tuple[str, ...]
    """Values of the kept labels in the order of `WANTED_METRICS`."""
    edge: float = 0.0
    """Upper bound of a histogram bucket in seconds, else 0."""


Sample = tuple[Series, float]
"""One exported value."""


class Snapshot(Struct, frozen=True, kw_only=True):
    """Counters of one replica since its process started."""

    replica: str
    stage: str
    """gateway, talker or codec."""
    time: datetime
    """The counters cover everything up to this time, and possibly the moments after."""
    counts: Mapping[Series, float] = {}
    """Nonzero values. Histogram buckets are not cumulative."""
    live_streams: int = 0
    """Current live streams of a gateway."""
    device: str = ""
    """Torch device of a talker or codec; empty if it is not reported."""
    captures: tuple[CaptureCost, ...] = ()
    """Capture costs of a codec's shapes."""


def wanted_series(stage: str, name: str, labels: Mapping[str, str]) -> Series | None:
    """Returns the series that an exported one belongs to, or None if it is not wanted.

    Raises ValueError for an invalid bucket bound.
    """
    kept = WANTED_METRICS[stage].get(name)
    if kept is None or labels.get("stage", stage) != stage:
        return None
    edge = float(labels.get("le", "")) if name in _BUCKETS else 0.0
    if not edge >= 0:
        raise ValueError(f"{name} has an invalid bucket bound")
    return Series(name, tuple(labels.get(label, "") for label in kept), edge)


def is_export_of(stage: str, samples: Iterable[Sample]) -> bool:
    """Returns whether samples come from a replica of a stage."""
    return any(series.name == _ALWAYS_EXPORTED[stage] for series, _ in samples)


def build_snapshot(replica: str, stage: str, at: datetime, samples: Iterable[Sample]) -> Snapshot:
    """Returns the snapshot of samples. Raises ValueError for invalid counts and for metrics of another stage."""
    samples = list(samples)
    if not is_export_of(stage, samples):
        raise ValueError(f"these are not a {stage}'s metrics")
    counts: dict[Series, float] = {}
    gauges: dict[Series, float] = {}
    for one, value in samples:
        if not 0 <= value <= MAX_COUNT:
            raise ValueError(f"{one.name} is not a valid count: {value}")
        if one.name in _COSTS:
            gauges[one] = value
        elif one.name in _GAUGES:
            gauges[one] = gauges.get(one, 0.0) + value
        elif value:
            counts[one] = counts.get(one, 0.0) + value
    seconds, memory = (values_of(gauges, name) for name in _COSTS)
    return Snapshot(
        replica=replica,
        stage=stage,
        time=at,
        counts=_non_cumulative(counts),
        live_streams=round(sum(values_of(gauges, m.LIVE_STREAMS.name).values())),
        device=next((device for (device,) in reversed(values_of(gauges, m.INFO.name))), ""),
        captures=tuple(
            CaptureCost(int(shape[0]), int(shape[1]), seconds[shape], round(memory[shape]))
            for shape in sorted(seconds.keys() & memory.keys())
        ),
    )


def values_of(counts: Mapping[Series, float], name: str) -> dict[tuple[str, ...], float]:
    """Returns the values of one metric by labels."""
    return {series.labels: value for series, value in counts.items() if series.name == name}


def _non_cumulative(counts: Mapping[Series, float]) -> dict[Series, float]:
    """Converts cumulative buckets into counts per bucket, without empty ones."""
    buckets = sorted(one for one in counts if one.name in _BUCKETS)
    found = {one: value for one, value in counts.items() if one.name not in _BUCKETS}
    histogram: tuple[str, tuple[str, ...]] | None = None
    below = 0.0
    for one in buckets:
        if one[:2] != histogram:
            histogram, below = one[:2], 0.0
        inside, below = counts[one] - below, counts[one]
        if inside < 0:
            raise ValueError(f"{one.name} is not cumulative")
        if inside:
            found[one] = inside
    return found


MAX_TEXT = 8 << 20
"""Size limit of one replica's metrics in characters."""
MAX_LINE = 4096

_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?")
_ESCAPED = re.compile(r"\\(.)")


def parse_metrics(replica: str, stage: str, at: datetime, text: str) -> Snapshot:
    """Returns the counters in the `/metrics` text that was read at `at`. Raises ValueError for invalid input."""
    if len(text) > MAX_TEXT:
        raise ValueError(f"the metrics are larger than {MAX_TEXT >> 20} MiB")
    if stage not in WANTED_METRICS:
        raise ValueError(f"unknown stage {stage}")
    return build_snapshot(replica, stage, at, _samples(stage, text))


def _samples(stage: str, text: str) -> Iterator[Sample]:
    names = tuple(WANTED_METRICS[stage])
    for line in text.split("\n"):
        if not line.startswith(names):
            continue
        # A label value may contain any character; a number contains neither brace nor quote.
        head, brace, tail = line.rpartition("}")
        name, _, value = (head + brace, "", tail) if brace else line.partition(" ")
        one = _series(stage, name)
        if one is not None:
            yield one, float(value.split()[0] if value.split() else "")


@lru_cache(maxsize=1 << 16)
def _series(stage: str, text: str) -> Series | None:
    """Returns the series of a line, or None if it is not wanted. Raises ValueError for a malformed line."""
    found = _LINE.fullmatch(text) if len(text) <= MAX_LINE else None
    if found is None:
        raise ValueError("not in the Prometheus text format")
    return wanted_series(stage, found[1], _labels(found[2] or ""))


def _labels(text: str) -> dict[str, str]:
    labels, at = {}, 0
    while at < len(text):
        found = _LABEL.match(text, at)
        if found is None:
            raise ValueError("not in the Prometheus text format")
        labels[found[1]] = _ESCAPED.sub(lambda one: {"n": "\n"}.get(one[1], one[1]), found[2])
        at = found.end()
    return labels
