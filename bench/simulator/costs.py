"""How long the engines of a machine take. Types, and machines that were measured."""

from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct

Curve = tuple[tuple[int, float], ...]
"""Seconds of a talker step by rows: measured points with linear inter- and extrapolation."""


class Calls(NamedTuple):
    """Seconds of a codec call: `base + per_row * rows + per_frame * rows * frames`."""

    base: float
    per_row: float
    per_frame: float

    def at(self, rows: int, frames: float) -> float:
        """Returns the seconds of a call. frames: of each row, in the mean."""
        return self.base + rows * (self.per_row + frames * self.per_frame)


class Costs(Struct, frozen=True, kw_only=True):
    """Engine times of one kind of machine, in seconds."""

    is_gpu: bool = False
    """Whether work is queued on a device, and requests are prefilled together. A CPU does one thing at a time."""
    step: Curve
    eager: Calls
    """A codec call at its own shape."""
    captured: Calls
    """A codec call at a captured shape."""
    prefill: float
    prepare: float = 0.0
    """Encoding of a reference, beside the steps, one request at a time."""
    reference_frames: int = 0
    """Frames of a reference. The codec decodes them first."""
    noise: float = 0.1
    """Standard deviation of the log time."""
    interference: float = 1.0
    """Slowdown while the other stage computes. Talker and codec with the same index share a device."""
    crowding: float = 0.0
    """How much more each further row of the codec's call slows the talker down."""
    capture: float = 0.3
    """Time to capture a shape."""
    capture_bytes: int = 2 << 20
    """Memory of a captured shape for each row and frame."""

    def step_seconds(self, rows: int) -> float:
        """Returns the seconds of a talker step."""
        pairs = list(pairwise(self.step)) or [(self.step[0], (self.step[0][0] + 1, self.step[0][1]))]
        (x0, y0), (x1, y1) = next((pair for pair in pairs if rows <= pair[1][0]), pairs[-1])
        return y0 + (y1 - y0) * (rows - x0) / (x1 - x0)


def line(base: float, per_row: float) -> Curve:
    """Returns the curve `base + per_row * rows` seconds."""
    return ((0, base), (1024, base + 1024 * per_row))


CPU2 = Costs(
    step=line(0.0131, 0.00083),
    eager=Calls(0.0084, 0.0006, 0.0028),
    captured=Calls(0.0084, 0.0006, 0.0028),
    prefill=0.0061,
    prepare=0.15,
    reference_frames=60,
)
"""The bundled voice, as its engines were timed on one of two cores."""
GPU = Costs(
    is_gpu=True,
    step=((1, 0.00235), (32, 0.0031), (64, 0.0034), (128, 0.0048)),
    eager=Calls(0.005, 0.00001, 0.00001),
    captured=Calls(0.00045, 0.000015, 0.00001),
    prefill=0.0012,
    prepare=0.02,
    reference_frames=75,
    interference=1.5,
)
"""About one H200 with the 1.7B shape, `bench/results/h200.md`."""


def _published(step: float, per_row: float, prefill: float, call: float, per_frame: float, crowding: float) -> Costs:
    """Returns the costs of a service that decodes 72 frames of left context again in each call, with one GPU for both.

    What a reference costs is part of `prefill`: its talker computes it.
    """
    calls = Calls(call, 72 * per_frame, per_frame)
    return Costs(
        is_gpu=True,
        step=line(step, per_row),
        eager=calls,
        captured=calls,
        prefill=prefill,
        crowding=crowding,
    )


H100_PRESETS = _published(0.0104, 0.00177, 0.0755, 0.0151, 1.36e-05, 0.126)
"""One H100, 1.7B, preset voices: fitted to the tables of vllm-omni #3322."""
H100_CLONES = _published(0.0119, 3.25e-05, 0.213, 0.0394, 0.000514, 0.225)
"""One H100, 1.7B, voice clones: fitted to the tables of vllm-omni #3322, after #3306."""
