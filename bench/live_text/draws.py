"""What a seed draws: texts, and how they are written. Pure."""

import functools
import random
import re
from collections.abc import Sequence

from msgspec import Struct

from syrinx_operator.commands.bench.load import corpus
from syrinx_stages.families import IMPLEMENTATION
from syrinx_stages.model.streamed_text import StreamedText
from syrinx_stages.model.tokenizer import Tokenizer

NUMBERS = ("It cost ${}.50 in 1998.", "{}.5 kg were in each bag.", "At 7:{} they left for 221 Baker St. in London.")
"""Sentences whose numbers become words while they arrive."""
SIZES, PAUSES = (1, 2, 5, 12), (0.0, 0.0, 0.01, 0.1)
"""Characters of a piece, and seconds before it, if the cuts are random."""
TOKEN_SECONDS, TOKEN_SIGMA = 0.0125, 0.6
"""Median time between two tokens of an LLM, 80 a second, and the standard deviation of its logarithm."""
STALL_CHANCE, STALL_SECONDS = 0.02, (0.2, 0.8)
"""Of an LLM: how often a token comes late, and by how much."""
_TOKEN = re.compile(r"\s?\w{1,7}|\s?[^\w\s]+|\s")


class Piece(Struct, frozen=True):
    """A part of a text."""

    delay: float
    """Seconds after the piece before."""
    text: str


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
    """Returns the number of the piece that ends the first word: it has the character after the word, or is the last."""
    text = StreamedText(_tokenizer())
    for number, piece in enumerate(pieces):
        text.feed(piece.text)
        if text.ids:
            return number
    return len(pieces) - 1


@functools.cache
def _tokenizer() -> Tokenizer:
    return IMPLEMENTATION.load_tokenizer("bundled")
