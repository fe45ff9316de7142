"""Plans the prefills of a burst: which prompts share a captured graph, and which shape it has. Pure."""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from syrinx_stages.talker.cuda.allocation import bucket_for

PREFILL_LENGTHS = (16, 32, 64, 128, 256, 512)
"""Prompts are padded to these lengths; a longer one is prefilled in chunks of the last one."""
PREFILL_ROWS = (1, 2, 4, 8, 16)
MAX_PREFILL_POSITIONS = 512
"""Of one prefill, padding included."""
PREFILL_OVERHEAD = 320
"""Cost of a prefill in positions, besides its own: on an H200 prefills of the 1.7B talker with 16, 64, 256 and 512
positions take 1.1, 1.3, 1.9 and 2.8 ms, 3.5 microseconds for each position and 320 more."""

MAX_BURST_POSITIONS = 4 * MAX_PREFILL_POSITIONS
"""Of the prompts of one `TalkerEngine.admit`, during which no stream gets a frame: 12 ms on an H200."""

MIXED_SHAPES = tuple((rows, length) for length in (32, 64, 128) for rows in PREFILL_ROWS if 64 <= rows * length <= 256)
"""Prefills (rows, length) that a frame can compute beside its own rows."""
MIXED_FRAMES = (32, 48, 64, 96, 128, 192, 256)
"""Rows of such frames. With fewer, a prefill of its own gives the first frame sooner; with more, it costs little."""


class Chunk(NamedTuple):
    """The positions `start` to `end` of a prompt."""

    prompt: int
    """Index of the prompt."""
    start: int
    end: int


class Prefill(NamedTuple):
    """One run of the graph of `rows` rows of `length` positions; chunk i is row i, further rows are padding."""

    rows: int
    length: int
    chunks: tuple[Chunk, ...]


def burst_size(positions: Sequence[int]) -> int:
    """Returns how many of the first prompts to prefill before the next frame: at least one."""
    return max(1, sum(total <= MAX_BURST_POSITIONS for total in accumulate(positions)))


def prefill_shapes() -> list[tuple[int, int]]:
    """Returns all shapes (rows, length) of prefills."""
    shapes = [(rows, length) for length in PREFILL_LENGTHS for rows in PREFILL_ROWS]
    return [(rows, length) for rows, length in shapes if rows * length <= MAX_PREFILL_POSITIONS]


def plan_prefills(positions: Sequence[int]) -> list[Prefill]:
    """Returns the prefills that compute prompts of these numbers of positions, in the order to run them.

    A prompt's chunks are in order. Chunks of the greatest length come first; the rest of each prompt then shares graphs
    with those of similar length.
    """
    longest = PREFILL_LENGTHS[-1]
    plan: list[Prefill] = []
    rest: list[Chunk] = []
    for prompt, count in enumerate(positions):
        starts = range(0, count, longest)
        chunks = [Chunk(prompt, start, min(start + longest, count)) for start in starts]
        plan += [Prefill(1, longest, (chunk,)) for chunk in chunks[:-1]]
        rest += chunks[-1:]
    return plan + _group(sorted(rest, key=_length))


def mixed_shape(positions: Sequence[int]) -> tuple[int, int] | None:
    """Returns the smallest of `MIXED_SHAPES` that holds prompts of these numbers of positions; None if none does."""
    count, longest = len(positions), max(positions)
    holding = [shape for shape in MIXED_SHAPES if shape[0] >= count and shape[1] >= longest]
    return min(holding, key=lambda shape: (shape[0] * shape[1], shape[1]), default=None)


def _group(chunks: Sequence[Chunk]) -> list[Prefill]:
    """Returns the cheapest partition of chunks, in ascending order of length, into prefills of neighbors."""
    best: list[tuple[int, list[Prefill]]] = [(0, [])]
    """By number of chunks: the cost of their prefills, and the prefills."""
    for end in range(1, len(chunks) + 1):
        length = bucket_for(PREFILL_LENGTHS, _length(chunks[end - 1]))
        choices = []
        for rows in PREFILL_ROWS:
            if rows * length <= MAX_PREFILL_POSITIONS:
                start = max(0, end - rows)
                cost, plan = best[start]
                prefill = Prefill(rows, length, tuple(chunks[start:end]))
                choices.append((cost + PREFILL_OVERHEAD + rows * length, [*plan, prefill]))
        best.append(min(choices, key=lambda choice: (choice[0], len(choice[1]))))
    return best[-1][1]


def _length(chunk: Chunk) -> int:
    return chunk.end - chunk.start
