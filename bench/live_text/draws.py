"""What a seed draws: texts, and how they are written. Pure."""

import random
import re
from collections.abc import Sequence
from itertools import accumulate, takewhile

from msgspec import Struct

from syrinx_operator.commands.bench.load import corpus

MIN_WORDS = 10
NUMBERS = ("It cost ${}.50 in 1998.", "{}.5 kg were in each bag.", "At 7:{} they left for 221 Baker St. in London.")
"""Sentences whose numbers become words while they arrive."""
SIZES = (1, 2, 5, 12)
"""Characters of a piece, if the cuts are random."""
PAUSES = (0.0, 0.0, 0.01, 0.1)
"""Seconds before such a piece."""
TOKEN_SECONDS = 0.0125
"""Median time between two tokens of an LLM: 80 tokens a second."""
TOKEN_SIGMA = 0.6
"""Of the logarithm of these times."""
STALL_CHANCE, STALL_SECONDS = 0.02, (0.2, 0.8)
"""Of an LLM: how often a token comes late, and by how much."""
_TOKEN = re.compile(r"\s?\w{1,7}|\s?[^\w\s]+|\s")


class Piece(Struct, frozen=True):
    """A part of a text."""

    delay: float
    """Seconds after the piece before."""
    text: str


def sentences(seed: int, count: int) -> list[str]:
    """Returns single sentences of at least `MIN_WORDS` words."""
    long = [each for each in corpus() if len(each.split()) >= MIN_WORDS]
    return [random.Random(f"sentence {seed} {number}").choice(long) for number in range(count)]


def texts(seed: int, count: int) -> list[str]:
    """Returns texts of two sentences and one with numbers."""
    return [_text(random.Random(f"text {seed} {number}")) for number in range(count)]


def _text(generator: random.Random) -> str:
    numbers = generator.choice(NUMBERS).format(generator.randrange(10, 60))
    return " ".join((*generator.sample(corpus(), 2), numbers))


def cut(text: str, generator: random.Random) -> list[Piece]:
    """Returns a text in pieces of random sizes, at random times."""
    pieces: list[Piece] = []
    while text:
        size = generator.choice(SIZES)
        pieces.append(Piece(generator.choice(PAUSES), text[:size]))
        text = text[size:]
    return pieces


def written(text: str, generator: random.Random, pace: float = 1.0) -> list[Piece]:
    """Returns a text as an LLM writes it. pace: factor of all times."""
    pieces: list[Piece] = []
    for token in _TOKEN.findall(text):
        delay = TOKEN_SECONDS * generator.lognormvariate(0, TOKEN_SIGMA)
        if generator.random() < STALL_CHANCE:
            delay += generator.uniform(*STALL_SECONDS)
        pieces.append(Piece(pace * delay, token))
    return pieces


def first_word(pieces: Sequence[Piece]) -> int:
    """Returns the number of the piece with the character after the first word, from which on the word is known."""
    so_far = accumulate(piece.text for piece in pieces)
    return sum(1 for _ in takewhile(lambda text: not re.match(r"\s*\S+\s", text), so_far))
