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


class Live(Generic[S]):
    """The settings in force and their generation."""

    def __init__(self, settings: S, generation: int, max_resident: int | None = None) -> None:
        self.current = settings
        self.generation = generation
        self._max_resident = max_resident
        self._check(settings)

    def apply(self, update: Update) -> S:
        """Puts an update in force and returns the settings. Raises `SettingsError`; then nothing has changed."""
        generation = self.generation + 1 if update.generation is None else update.generation
        if generation < self.generation:
            raise SettingsError(
                f"generation {generation} is older than {self.generation}, which is in force", status=409
            )
        merged = {**msgspec.structs.asdict(self.current), **update.settings}
        try:
            settings = msgspec.convert(merged, type(self.current))
        except msgspec.ValidationError as error:
            raise SettingsError(f"settings: {error}") from None
        self._check(settings)
        self.current, self.generation = settings, generation
        return settings

    def _check(self, settings: S) -> None:
        limit = self._max_resident
        rows = getattr(settings, "max_num_seqs", None)
        if limit is not None and rows is not None and rows > limit:
            raise SettingsError(f"settings.max_num_seqs: {rows} is more than max_resident ({limit}) of this process")
        pairs = getattr(settings, "capture_pairs", ())
        if len(set(pairs)) != len(pairs):
            raise SettingsError("settings.capture_pairs: the same (rows, frames) pair stands twice")
        if limit is not None and any(pair[0] > limit for pair in pairs):
            raise SettingsError(f"settings.capture_pairs: a pair has more rows than max_resident ({limit})")
