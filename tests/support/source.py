"""A source of audio for a stream without a pipeline."""

from dataclasses import dataclass, field

from syrinx_stages.contract.messages import SpeechRequest
from syrinx_stages.gateway.cells.fanout import AudioQueue
from syrinx_stages.gateway.errors import ApiError, internal_error
from syrinx_stages.gateway.speech.speech import SpeechStream


@dataclass
class PlainSource:
    """Entries that a test puts into `audio`; nothing fails."""

    request: SpeechRequest
    audio: AudioQueue = field(default_factory=AudioQueue)

    def played(self, frames: int, spoken: int) -> None: ...

    def ended(self) -> None: ...

    async def check(self, stream: SpeechStream, seconds: float) -> None: ...

    def storage_full(self) -> str | None: ...

    def text_frames(self) -> float | None: ...

    def refusal(self, message: str) -> ApiError:
        return internal_error(message)
