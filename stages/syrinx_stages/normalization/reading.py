"""How a checkpoint reads the text of a request: in which segments, as which words, and for how long. Pure."""

from collections.abc import Iterator, Sequence

from msgspec import Struct, structs

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import SpeechRequest
from syrinx_stages.normalization.durations import Bounds, Durations, bounds
from syrinx_stages.normalization.normalize import code_of
from syrinx_stages.normalization.segments import Divided, StreamedDivider, divide
from syrinx_stages.normalization.streamed import normalize_streamed

_DETECTED = 1_200
"""Characters at the beginning of a text that tell its language."""
_UNDIVIDED = 1 << 30
"""Size of a segment that is not divided."""


class Reading(Struct, frozen=True, kw_only=True):
    """What is known of a checkpoint."""

    segment_size: int = FAMILY.segment_size
    """Letters of a segment, at most."""
    single_sentences: bool = False
    """A segment has one sentence: the model may end a text after one of several."""
    durations: Durations = Durations()

    def segments(self, request: SpeechRequest, start: int = 0) -> Iterator[Divided]:
        """Yields the segments of a request from a character of its text on, as they are spoken."""
        text = request.text
        if not request.is_divided:
            yield as_spoken(Divided(text, 0, len(text)), request)
            return
        code = code_of(text[:_DETECTED], _languages(request))
        pieces = divide(text, self.segment_size, single_sentences=self.single_sentences, language=code, start=start)
        for piece in pieces:
            yield as_spoken(piece, request)

    def divider(self, request: SpeechRequest) -> StreamedDivider:
        """Returns what divides the text of a request with `streams_text`."""
        size = self.segment_size if request.is_divided else _UNDIVIDED
        single = self.single_sentences and request.is_divided
        return StreamedDivider(size, single_sentences=single, languages=_languages(request))

    def bounds(self, request: SpeechRequest, text: str) -> Bounds:
        """Returns how many frames the speech of a segment has. text: as it is spoken."""
        return bounds(text, self.durations, request.voice)


def as_spoken(piece: Divided, request: SpeechRequest) -> Divided:
    """Returns a segment of a request's text, normalized."""
    return structs.replace(piece, text=normalize_streamed(piece.text, request.languages))


def _languages(request: SpeechRequest) -> Sequence[str]:
    return request.languages or (request.language,)
