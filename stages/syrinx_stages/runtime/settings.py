"""Live settings: partial updates, validated whole, with a generation that never goes back.

What is set for a limited time is laid over the base and ends by itself: nobody need be there to take it back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from syrinx_stages.contract.settings import Seconds, StageSettings
from syrinx_stages.runtime.errors import SettingsError

S = TypeVar("S", bound=StageSettings)


class SettingsUpdate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `PUT /settings`. Settings left out keep their value; limited ones, that of the base."""

    settings: dict[str, Any]
    generation: int | None = None
    """Of the whole; left out, the present one is counted up. Limited settings have their base's: it is not counted."""
    seconds: Seconds | None = None
    """How long the settings are in force, over the base; None if they are the base."""


def merge(settings: S, update: SettingsUpdate, max_resident: int | None = None) -> S:
    """`settings` with an update's values, checked whole. Raises `SettingsError` naming the field."""
    try:
        merged = msgspec.convert({**msgspec.structs.asdict(settings), **update.settings}, type(settings))
    except msgspec.ValidationError as error:
        raise SettingsError(f"settings: {error}") from None
    _check(merged, max_resident)
    return merged


class LiveSettings(Generic[S]):
    """The settings in force and their generation. `clock` is in monotonic seconds.

    A limited setting is over when its time is, whoever looks: nothing has to happen for it.
    """

    def __init__(
        self,
        settings: S,
        generation: int,
        max_resident: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.base = settings
        """What is in force without a limited setting."""
        self.generation = generation
        """Of the base."""
        self._max_resident = max_resident
        self._clock = clock
        self._limited = settings
        self._until = clock()
        _check(settings, max_resident)

    @property
    def seconds_left(self) -> float | None:
        """How long the limited setting goes on to be in force; None without one."""
        left = self._until - self._clock()
        return left if left > 0 else None

    @property
    def current(self) -> S:
        """The settings in force."""
        return self.base if self.seconds_left is None else self._limited

    def apply(self, update: SettingsUpdate) -> S:
        """Puts an update in force and returns the settings. Raises `SettingsError`; then nothing has changed."""
        if update.seconds is None:
            self._set(update)
        else:
            self._limit(update, update.seconds)
        return self.current

    def _set(self, update: SettingsUpdate) -> None:
        generation = self.generation + 1 if update.generation is None else update.generation
        if generation < self.generation:
            raise SettingsError(
                f"generation {generation} is older than {self.generation}, which is in force", status=409
            )
        self.base = merge(self.base, update, self._max_resident)
        self.generation = generation
        self._until = self._clock()

    def _limit(self, update: SettingsUpdate, seconds: float) -> None:
        # Over another base it would not be what was meant.
        if update.generation not in (None, self.generation):
            raise SettingsError(
                f"generation {update.generation} is not that of the base, {self.generation}: set the base first, "
                "without seconds",
                status=409,
            )
        self._limited = merge(self.base, update, self._max_resident)
        self._until = self._clock() + seconds


def _check(settings: StageSettings, max_resident: int | None) -> None:
    rows = getattr(settings, "max_num_seqs", None)
    if max_resident is not None and rows is not None and rows > max_resident:
        raise SettingsError(f"settings.max_num_seqs: {rows} is more than max_resident ({max_resident}) of this process")
    pairs = getattr(settings, "capture_pairs", ())
    if len(set(pairs)) != len(pairs):
        raise SettingsError("settings.capture_pairs: the same (rows, frames) pair stands twice")
    if max_resident is not None and any(pair[0] > max_resident for pair in pairs):
        raise SettingsError(f"settings.capture_pairs: a pair has more rows than max_resident ({max_resident})")
