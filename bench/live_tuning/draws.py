"""What a seed draws: the order of the settings to start from, and how the loads shift. Pure."""

import itertools
import random
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from syrinx_operator.commands.bench.load import Limit, Script, corpus, poisson
from syrinx_operator.resource.knobs import RAMP_LADDER, ROWS_LADDER, Setting, setting_of
from syrinx_operator.resource.resolve import ResolvedPipeline


class Phase(Struct, frozen=True, kw_only=True):
    """A time in which the load does not change."""

    seconds: float
    rate: float
    """Requests per second."""
    burst: int = 1
    """Requests that arrive at once."""
    texts: Literal["all", "shortest third", "longest third"] = "all"
    """Of the corpus. The longest third is 1.6 times as long as all texts, the shortest one half as long."""


class Load(Struct, frozen=True, kw_only=True):
    """Poisson arrivals, in a phase before and one after a shift."""

    name: str
    seed: int
    phases: tuple[Phase, ...]

    def requests(self, voices: Sequence[str]) -> list[tuple[float, Script, int]]:
        """Returns the arrival time of each request in seconds, its script, and its number there."""
        found: list[tuple[float, Script, int]] = []
        texts, begin = corpus(), 0.0  # The shortest first.
        third = len(texts) // 3
        for number, phase in enumerate(self.phases, self.seed):
            of_phase = {"all": texts, "shortest third": texts[:third], "longest third": texts[-third:]}[phase.texts]
            script = Script(of_phase, voices, number)
            bursts = poisson(phase.rate / phase.burst, number, Limit(seconds=phase.seconds))
            times = [begin + at for at in bursts for _ in range(phase.burst)]
            found += [(at, script, index) for index, at in enumerate(times)]
            begin += phase.seconds
        return found


def draw_loads(capacity: float, seed: int, seconds: float, shift_seconds: float) -> tuple[Load, Load]:
    """Returns half of the capacity in bursts, which then grows, and three quarters of it, which then shrink.

    By the seed the rate changes, or the length of the texts. capacity: in requests per second.
    """
    randoms = random.Random(f"loads {seed}")
    low = Phase(seconds=seconds, rate=0.5 * capacity, burst=2)
    high = Phase(seconds=seconds, rate=0.75 * capacity)
    grown = randoms.choice((replace(low, rate=1.6 * low.rate), replace(low, texts="longest third")))
    shrunk = randoms.choice((replace(high, rate=0.5 * high.rate), replace(high, texts="shortest third")))
    return (
        Load(name="50 %", seed=seed, phases=(low, replace(grown, seconds=shift_seconds))),
        Load(name="75 %", seed=seed, phases=(high, replace(shrunk, seconds=shift_seconds))),
    )


def draw_settings(defaults: ResolvedPipeline, seed: int) -> list[Setting]:
    """Returns all settings but the defaults, within the limits of resident requests, in an order of the seed."""
    found = [
        Setting(talker_max_num_seqs=talker, codec_max_num_seqs=codec, chunk_ramp=ramp)
        for talker, codec, ramp in itertools.product(ROWS_LADDER, ROWS_LADDER, RAMP_LADDER)
        if talker <= defaults.talker.max_resident and codec <= defaults.codec.max_resident
    ]
    found.remove(setting_of(defaults))
    return random.Random(f"settings {seed}").sample(found, len(found))
