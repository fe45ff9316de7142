"""The contract of a talker engine: frames of codes for many requests at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from msgspec import Struct
from torch import Tensor

from syrinx_stages.contract.messages import End, SpeechRequest
from syrinx_stages.model.prompt import Prompt
from syrinx_stages.runtime.engine import Engine

Step = TypeVar("Step")
"""What an engine keeps of a launched step."""


class Prepared(Struct):
    """A request ready for prefill."""

    request: SpeechRequest
    prompt: Prompt
    codes: Tensor
    """Frames already made, by an earlier owner: [n, 16] long."""
    max_frames: int
    reference_codes: bytes | None = None
    """The reference audio's codes, for the codec."""

    @property
    def frames(self) -> int:
        """Frames already made."""
        return len(self.codes)


class NoRoom(Exception):
    """There is no memory for a request, or not before another one is over."""


class TalkerEngine(Engine, Protocol[Step]):
    """State of all resident requests, and the steps that advance them."""

    prefill_rows: int
    """How many requests one `admit` may take: more than one only where that costs little more than one."""

    def prepare(self, request: SpeechRequest, codes: bytes, reference: bytes | None) -> Prepared:
        """Builds a request's prompt; on any thread, and more than one at a time.

        codes: frames that an earlier owner wrote; reference: 16-bit PCM at 24 kHz.
        Raises `RequestError` naming the field that this checkpoint cannot serve.
        """

    def admit(self, prepared: Sequence[Prepared]) -> None:
        """Prefills requests, and replays the frames they already have; a state one had before is thrown away.

        Raises `NoRoom` if there is no memory for all of them: none is resident then, and each may be tried alone.
        """

    def launch(self, ids: Sequence[str]) -> Step:
        """Begins one frame of each of these requests; none twice.

        A row that ends in a step that is not read yet may be among them: it makes no further frame.
        """

    def read(self, step: Step) -> Mapping[str, bytes | End]:
        """Waits for a step. One frame of each request (int16 little-endian), or its end.

        A request that had ended in an earlier step, or was released since, may be missing; and one for whose frame
        there was no memory left, which has not changed.
        """
