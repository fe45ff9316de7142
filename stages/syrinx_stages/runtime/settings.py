"""Live settings: partial updates, validated as a whole, with a generation that never decreases.

Temporary settings override the base settings for a limited time and then expire without any further call.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from syrinx_stages.contract.settings import Seconds, StageSettings
from syrinx_stages.runtime.clock import monotonic
from syrinx_stages.runtime.errors import SettingsError

S = TypeVar("S", bound=StageSettings)


class SettingsUpdate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `PUT /settings/STAGE`. Omitted settings keep the value that they have in the base settings."""

    settings: dict[str, Any]
    generation: int | None = None
    """Generation of the new base settings; None increments the current one. For temporary settings: the generation of
    the base settings that they override, which does not change; None accepts any."""
    seconds: Seconds | None = None
    """How long the settings override the base settings; None if they are the new base settings."""


def merge(settings: S, update: SettingsUpdate, max_resident: int | None = None) -> S:
    """Returns `settings` with the values of an update. Raises `SettingsError` that names the invalid field."""
    known = {name: value for name, value in msgspec.structs.asdict(settings).items() if value is not msgspec.UNSET}
    try:
        merged = msgspec.convert({**known, **update.settings}, type(settings))
    except msgspec.ValidationError as error:
        raise SettingsError(f"settings: {error}") from None
    _check(merged, max_resident)
    return merged


class LiveSettings(Generic[S]):
    """The settings in force and their generation. `clock` returns monotonic seconds."""

    def __init__(
        self, settings: S, generation: int, max_resident: int | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        self.base = settings
        """The settings in force when no temporary settings are."""
        self.generation = generation
        """Generation of the base settings."""
        self.limits: dict[str, int] = {}
        """What the engine can do, by setting; empty before it is loaded, or if it can do anything."""
        self._max_resident = max_resident
        self._clock = clock
        self._temporary = settings
        self._expires = clock()
        _check(settings, max_resident)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the temporary settings expire; None without temporary settings."""
        left = self._expires - self._clock()
        return left if left > 0 else None

    @property
    def current(self) -> S:
        """The settings in force."""
        return self.base if self.seconds_left is None else self._temporary

    @property
    def max_num_seqs(self) -> int:
        """The rows of a step in force, as far as the engine has them. For the settings of a talker or codec."""
        rows: int = getattr(self.current, "max_num_seqs")  # noqa: B009
        return min(rows, self.limits.get("max_num_seqs", rows))

    def apply(self, update: SettingsUpdate) -> None:
        """Applies an update. Raises `SettingsError` and then changes nothing."""
        if update.seconds is not None:
            # The sender meant a combination with its own base settings.
            if update.generation not in (None, self.generation):
                raise SettingsError(
                    f"generation {update.generation} is not that of the base, {self.generation}: set the base first, "
                    "without seconds",
                    status=409,
                )
            self._temporary = merge(self.base, update, self._max_resident)
            self._expires = self._clock() + update.seconds
            return
        generation = self.generation + 1 if update.generation is None else update.generation
        if generation < self.generation:
            raise SettingsError(
                f"generation {generation} is older than {self.generation}, which is in force", status=409
            )
        self.base = merge(self.base, update, self._max_resident)
        self.generation = generation
        self._expires = self._clock()


def _check(settings: StageSettings, max_resident: int | None) -> None:
    rows = getattr(settings, "max_num_seqs", None)
    if max_resident is not None and rows is not None and rows > max_resident:
        raise SettingsError(f"settings.max_num_seqs: {rows} is more than max_resident ({max_resident}) of this process")
    pairs = getattr(settings, "capture_pairs", ())
    if len(set(pairs)) != len(pairs):
        raise SettingsError("settings.capture_pairs: a (rows, frames) pair is listed twice")
    if max_resident is not None and any(pair[0] > max_resident for pair in pairs):
        raise SettingsError(f"settings.capture_pairs: a pair has more rows than max_resident ({max_resident})")
