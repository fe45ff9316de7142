"""The exposition of a process's metrics: the text that prometheus-client writes, made faster.

A series' name and labels never change, so their text is made once. Values are read from prometheus-client's objects,
whose attributes this module knows: `tests/unit/test_exposition.py` compares it with prometheus-client's encoders.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from syrinx_stages.runtime.telemetry.metrics import Metrics

BATCH_LINES = 100
PAUSE_SECONDS = 1e-4
"""After so many lines, at most 1 ms, a scrape lets the event loop run."""
_OPEN_METRICS = "application/openmetrics-text"


class Exposition:
    """Encodes the metrics of a process, and what `others` collect. `labels` are those that every series has.

    `encode` may run in a thread beside the one that counts, but not twice at a time.
    """

    def __init__(
        self, metrics: Metrics, labels: Mapping[str, str] = MappingProxyType({}), others: Sequence[Collector] = ()
    ) -> None:
        self._metrics = metrics
        self._labels = dict(labels)
        self._others = others
        self._names: dict[str, dict[tuple[str, ...], Sequence[str]]] = {}
        """The text of each sample before its value, by metric and label values."""

    def encode(self, accept: str) -> tuple[bytes, str]:
        """Returns the text and its content type, chosen by the header `Accept`.

        Sleeps in between: another thread that wants Python's lock would wait 5 ms for it each time.
        """
        try:
            content_type = choose_encoder(accept)[1]
        except (TypeError, ValueError):  # A version that is not a number.
            content_type = choose_encoder("")[1]
        stream, lines = self._lines(content_type.startswith(_OPEN_METRICS)), list[str]()
        while batch := list(itertools.islice(stream, BATCH_LINES)):
            lines += batch
            time.sleep(PAUSE_SECONDS)
        return "".join(lines).encode(), content_type

    def _lines(self, is_open: bool) -> Iterator[str]:
        for collected in itertools.chain.from_iterable(each.collect() for each in self._others):
            yield from _head(collected.name, collected.type, collected.documentation, is_open)
            for sample in collected.samples:
                yield f"{_name('', sample, self._labels)} {_number(sample.value)}\n"
        for family in self._metrics.families():
            yield from _head(family._name, family._type, family._documentation, is_open)
            yield from self._series(family, is_open)
        if is_open:
            yield "# EOF\n"

    def _series(self, family: Any, is_open: bool) -> Iterator[str]:
        known, is_histogram = self._names.setdefault(family._name, {}), family._type == "histogram"
        suffix = "_total" if family._type == "counter" else ""
        for values, child in _children(family):
            if (names := known.get(values)) is None:
                labels = self._labels | dict(zip(family._labelnames, values, strict=True))
                if is_histogram:
                    names = [_name(family._name, each, labels) for each in child._child_samples()]
                else:
                    names = [f"{family._name}{suffix}{_braces(labels)}"]
                known[values] = names
            if not is_histogram:
                yield f"{names[0]} {_number(child._value.get())}\n"
                continue
            exemplars = _exemplars(child) if is_open else itertools.repeat("")
            for name, value, exemplar in zip(names, _histogram(child), exemplars, strict=False):
                yield f"{name} {_number(value)}{exemplar}\n"


def _children(family: Any) -> list[tuple[tuple[str, ...], Any]]:
    """Returns the series of a family and their label values."""
    if not family._labelnames:
        return [((), family)]
    with family._lock:
        return list(family._metrics.items())


def _histogram(child: Any) -> list[float]:
    """Returns the value of each bucket, then the count and the sum."""
    counts = list(itertools.accumulate(bucket.get() for bucket in child._buckets))
    return [*counts, counts[-1], *([child._sum.get()] if child._upper_bounds[0] >= 0 else [])]


def _exemplars(child: Any) -> Iterator[str]:
    """Yields the exemplar of each bucket, then none for the other samples."""
    for bucket in child._buckets:
        exemplar = bucket.get_exemplar()
        yield "" if exemplar is None else _exemplar(exemplar)
    yield from itertools.repeat("")


def _head(name: str, kind: str, text: str, is_open: bool) -> tuple[str, str]:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    if is_open:
        text = text.replace('"', r"\"")
    elif kind == "counter":
        name += "_total"
    return f"# HELP {name} {text}\n", f"# TYPE {name} {kind}\n"


def _name(family: str, sample: Any, labels: Mapping[str, str]) -> str:
    return f"{family}{sample.name}{_braces({**labels, **sample.labels})}"


def _exemplar(exemplar: Any) -> str:
    timestamp = "" if exemplar.timestamp is None else f" {exemplar.timestamp}"
    return f" # {_braces(exemplar.labels) or '{}'} {_number(exemplar.value)}{timestamp}"


def _number(value: float) -> str:
    # Faster than prometheus-client's function, which writes smaller numbers in the same way.
    return repr(float(value)) if abs(value) < 1e5 else floatToGoString(value)  # type: ignore[no-untyped-call]


def _braces(labels: Mapping[str, str]) -> str:
    """Returns labels in the order of their names; empty without labels."""
    return f"{{{','.join(itertools.starmap(_pair, sorted(labels.items())))}}}" if labels else ""


@lru_cache(4096)
def _pair(name: str, value: str) -> str:
    escaped = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return f'{name}="{escaped}"'
