"""The interface of a talker engine: it generates code frames for many requests at once."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from syrinx_stages.contract.messages import End, EndReason, SpeechRequest
from syrinx_stages.model.streamed_text import StreamedText
from syrinx_stages.runtime.requests.engine import Engine
from syrinx_stages.talker.prompt import Prepared

_NOT_FINITE = End(EndReason.ERROR, "the talker computed scores that are not finite numbers")


def frame_results(frames: NDArray[np.int16], eos: int) -> list[bytes | End]:
    """Returns the frame ([16] int16, little-endian) or the end of each row of sampled codes [rows, 16].

    A row ends if its code 0 is `eos`, and with an error if a code is negative, because its scores were not finite.
    """
    data, size = frames.tobytes(), frames.itemsize * frames.shape[1]
    results: list[bytes | End] = [data[start : start + size] for start in range(0, len(data), size)]
    ended = frames[:, 0] == eos
    for row in np.flatnonzero(ended | (frames.min(1) < 0)).tolist():
        results[row] = End(EndReason.STOP) if ended[row] else _NOT_FINITE
    return results


class EngineFull(Exception):
    """The engine has no memory for a request, at least until another one ends."""


class TalkerEngine(Engine, Protocol):
    """Holds the state of all resident requests and advances them in steps."""

    ahead_frames: float
    """Generated frames that the client has not got, from which on a live stream waits for the steps of others; inf: it
    never waits. Steps of more rows leave more time to a codec on the same processor."""

    prompt_rows: float
    """A step of more rows is launched while up to `depth` - 1 others are in flight, so that a device never idles.
    Smaller ones run one at a time: a new request waits for the end of one step only."""

    prefill_rows: int
    """Maximum requests per `admit` call. It is above 1 only where a batch costs little more than one request."""

    text_lookahead: int
    """Text tokens after a frame's own that its step reads, so that it is launched once they are known. A frame's own is
    the first token for the first frame, and so on."""

    def open_text(self, request: SpeechRequest) -> StreamedText:
        """Returns the text of the first segment of a request with `streams_text`, which has no character yet.

        Raises RequestError if the engine cannot speak such requests.
        """

    def prepare(
        self, request: SpeechRequest, codes: bytes, reference: bytes | None, text: StreamedText | None = None
    ) -> Prepared:
        """Builds a request's prompt. Thread-safe.

        text: with `streams_text`, that of the first segment so far: at least a token, and those of the existing frames.

        codes: frames written by a previous owner, [frames, 16] int16. reference: mono samples at the family's rate,
        float32, or an encoded `PreparedVoice` if the request says so. Raises RequestError that names a field which this
        checkpoint cannot serve.
        """

    def admit(self, prepared: Sequence[Prepared]) -> None:
        """Prefills requests and replays their existing frames. Discards any state that they had before.

        Raises EngineFull if there is no memory for all of them. Then none is resident, and each can be retried alone.
        """

    def extend(self, request_id: str, tokens: Sequence[int], ended: bool) -> None:
        """Adds tokens of its text to a resident first segment, and the text's end. See `text_lookahead`."""

    def launch(self, ids: Sequence[str]) -> Any:
        """Launches a step that generates one frame of each request; returns its handle. Ids must be unique.

        A row that ends in a step that has not been read yet may be included; it generates no further frame.
        """

    def read(self, step: Any) -> Mapping[str, bytes | End]:
        """Waits for a step and returns a frame ([16] int16, little-endian) or the end of each request.

        A request is missing if it ended in an earlier step, was released, or had no memory for its frame. In the last
        case its state is unchanged.
        """
