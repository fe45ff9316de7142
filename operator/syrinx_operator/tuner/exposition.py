"""Reads a stage's `/metrics` (the Prometheus text format), and of it only what the tuner needs. Pure.

A gateway exports a histogram for each pair of talker and codec, so this is made to be quick: lines of others are not
looked into, and a series that was read once is known by its text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache

from syrinx_operator.tuner.snapshot import WANTED, Sample, Series, Snapshot, series, snapshot_of

MAX_TEXT = 8 << 20
"""Characters of one replica's metrics at most."""
MAX_LINE = 4096

_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?")
_ESCAPED = re.compile(r"\\(.)")
_KNOWN_SERIES = 1 << 16


def snapshot(replica: str, stage: str, at: datetime, text: str) -> Snapshot:
    """A replica's counters from its `/metrics`, as read at `at`. Raises `ValueError` for what is none."""
    if len(text) > MAX_TEXT:
        raise ValueError(f"its metrics are larger than {MAX_TEXT >> 20} MiB")
    if stage not in WANTED:
        raise ValueError(f"there is no stage {stage}")
    return snapshot_of(replica, stage, at, _samples(stage, text))


def _samples(stage: str, text: str) -> Iterator[Sample]:
    names = tuple(WANTED[stage])
    for line in text.split("\n"):
        if not line.startswith(names):
            continue
        # A label's value may hold any character; a number holds no brace and no quote.
        head, brace, tail = line.rpartition("}")
        name, _, value = (head + brace, "", tail) if brace else line.partition(" ")
        one = _series(stage, name)
        if one is not None:
            yield Sample(one, float(value.split()[0] if value.split() else ""))


@lru_cache(maxsize=_KNOWN_SERIES)
def _series(stage: str, text: str) -> Series | None:
    """The series that a line names; None if it is not wanted. Raises `ValueError` if the line is broken."""
    found = _LINE.fullmatch(text) if len(text) <= MAX_LINE else None
    if found is None:
        raise ValueError("this is not Prometheus' text format")
    return series(stage, found[1], _labels(found[2] or ""))


def _labels(text: str) -> dict[str, str]:
    labels, at = {}, 0
    while at < len(text):
        found = _LABEL.match(text, at)
        if found is None:
            raise ValueError("this is not Prometheus' text format")
        labels[found[1]] = _ESCAPED.sub(lambda one: {"n": "\n"}.get(one[1], one[1]), found[2])
        at = found.end()
    return labels
