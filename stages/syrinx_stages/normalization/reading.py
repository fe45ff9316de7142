"""How a checkpoint reads the text of a request: in which segments, as which words, and for how long. Pure."""

from collections.abc import Iterator

from msgspec import Struct, structs

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import SpeechRequest
from syrinx_stages.normalization.durations import Bounds, Durations, bounds
from syrinx_stages.normalization.lexicon import respell
from syrinx_stages.normalization.normalize import code_of
from syrinx_stages.normalization.segments import Divided, divide
from syrinx_stages.normalization.streamed import normalize_streamed

_DETECTED = 1_200
"""Characters at the beginning of a text that tell its language."""


def as_spoken(text: str, request: SpeechRequest) -> str:
    """Returns a text of a request that is not divided, respelled and normalized."""
    return normalize_streamed(respell(text, request.lexicon).text, request.languages)


class Reading(Struct, frozen=True, kw_only=True):
    """What is known of a checkpoint."""

    segment_size: int = FAMILY.segment_size
    """Letters of a segment, at most."""
    single_sentences: bool = False
    """A segment has one sentence: the model may end a text after one of several."""
    durations: Durations = Durations()

    def segments(self, request: SpeechRequest, start: int = 0) -> Iterator[Divided]:
        """Yields the segments of a request from a character of its text on, as they are spoken."""
        text, languages = request.text, request.languages
        if not request.is_divided:
            yield Divided(text, 0, len(text))
            return
        code = code_of(text[:_DETECTED], languages or (request.language,))
        pieces = divide(text, self.segment_size, single_sentences=self.single_sentences, language=code, start=start)
        for piece in pieces:
            yield structs.replace(piece, text=normalize_streamed(piece.text, languages))

    def bounds(self, request: SpeechRequest, text: str) -> Bounds:
        """Returns how many frames the speech of a segment has."""
        spoken = text if request.is_divided else as_spoken(text, request)
        return bounds(spoken, self.durations, request.voice)
