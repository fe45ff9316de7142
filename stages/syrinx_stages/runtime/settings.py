"""Live settings: partial updates, validated whole, with a generation that never goes back."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from syrinx_stages.contract.settings import StageSettings
from syrinx_stages.runtime.errors import SettingsError

S = TypeVar("S", bound=StageSettings)


class Update(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `PUT /settings`. Settings left out keep their value."""

    settings: dict[str, Any]
    generation: int | None = None
    """Of the whole; left out, the present one is counted up."""


def merge(settings: S, update: Update, max_resident: int | None = None) -> S:
    """`settings` with an update's values, checked whole. Raises `SettingsError` naming the field."""
    try:
        merged = msgspec.convert({**msgspec.structs.asdict(settings), **update.settings}, type(settings))
    except msgspec.ValidationError as error:
        raise SettingsError(f"settings: {error}") from None
    _check(merged, max_resident)
    return merged


class Live(Generic[S]):
    """The settings in force and their generation."""

    def __init__(self, settings: S, generation: int, max_resident: int | None = None) -> None:
        self.current = settings
        self.generation = generation
        self._max_resident = max_resident
        _check(settings, max_resident)

    def apply(self, update: Update) -> S:
        """Puts an update in force and returns the settings. Raises `SettingsError`; then nothing has changed."""
        generation = self.generation + 1 if update.generation is None else update.generation
        if generation < self.generation:
            raise SettingsError(
                f"generation {generation} is older than {self.generation}, which is in force", status=409
            )
        self.current = merge(self.current, update, self._max_resident)
        self.generation = generation
        return self.current


def _check(settings: StageSettings, max_resident: int | None) -> None:
    rows = getattr(settings, "max_num_seqs", None)
    if max_resident is not None and rows is not None and rows > max_resident:
        raise SettingsError(f"settings.max_num_seqs: {rows} is more than max_resident ({max_resident}) of this process")
    pairs = getattr(settings, "capture_pairs", ())
    if len(set(pairs)) != len(pairs):
        raise SettingsError("settings.capture_pairs: the same (rows, frames) pair stands twice")
    if max_resident is not None and any(pair[0] > max_resident for pair in pairs):
        raise SettingsError(f"settings.capture_pairs: a pair has more rows than max_resident ({max_resident})")
