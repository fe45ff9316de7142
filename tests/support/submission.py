"""A submitted request for a stream without a pipeline."""

import asyncio
from dataclasses import dataclass, field

from syrinx_stages.connector.base import StreamEntry
from syrinx_stages.contract.messages import Segment, SpeechRequest
from syrinx_stages.gateway.errors import ApiError, internal_error


@dataclass
class PlainSubmission:
    """Entries that a test puts into `audio`; nothing fails."""

    request: SpeechRequest
    audio: asyncio.Queue[StreamEntry] = field(default_factory=asyncio.Queue)
    started: bool = False

    def report(self, frames: int, segment: Segment | None) -> None: ...

    def generated(self) -> None: ...

    async def check(self, seconds: float, segment: Segment | None) -> bool:
        return False

    def storage_full(self) -> str | None: ...

    def text_frames(self, segment: Segment | None) -> float | None: ...

    def pause_after(self, segment: Segment) -> float:
        return segment.pause

    def refusal(self, message: str) -> ApiError:
        return internal_error(message)
