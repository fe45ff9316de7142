"""Simulated clients that play what they get, and what they heard."""

import base64
import io
import json
import math
import random
import wave
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec

from support.simulation.clients import Client, Wish
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import TaskType

AUDIBLE_GAP = 0.001
"""Seconds without audio that a listener hears."""
_BYTES_PER_SECOND = 2 * FAMILY.sample_rate


class Outcome(msgspec.Struct):
    """How a request was served. Times are seconds of the scenario."""

    at: float
    ttfa: float = math.inf
    """Seconds until the first audio; infinite without any."""
    gaps: int = 0
    """Times that playback ran out of audio."""
    refused: bool = False
    complete: bool = False

    def is_well(self, limit: float) -> bool:
        """Returns whether the request was heard in time, to its end, and without a gap."""
        return self.complete and self.ttfa <= limit and not self.gaps


@dataclass
class Spoken(Wish):  # type: ignore[misc]
    """A wish with the body that asks for it."""

    content: bytes = b""

    def body(self) -> bytes:
        """Returns the request's body."""
        return self.content


@dataclass
class Listener(Client):  # type: ignore[misc]
    """A client that plays what it gets."""

    clock: Callable[[], float] = field(kw_only=True)
    """Returns the seconds of the scenario."""
    outcome: Outcome = field(kw_only=True)
    plays_until: float = 0.0

    async def _send(self, message: dict[str, Any]) -> None:
        outcome, now = self.outcome, self.clock()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            outcome.refused = self.status == 503
            return
        if (data := message.get("body", b"")) and self.status == 200:
            if outcome.ttfa == math.inf:
                outcome.ttfa, self.plays_until = now - outcome.at, now
            elif now > self.plays_until + AUDIBLE_GAP:
                outcome.gaps, self.plays_until = outcome.gaps + 1, now
            self.plays_until += len(data) / _BYTES_PER_SECOND
        outcome.complete = self.complete = self.status == 200 and not message.get("more_body", False)


def body_of(task_type: TaskType, number: int, frames: int) -> bytes:
    """Returns a request whose audio has so many frames."""
    fields: dict[str, Any] = {
        # The gateway counts characters; the engines speak as many frames as they are told to.
        **{"input": f"Hello{'o' * (frames // 4)}.", "response_format": "pcm", "stream": True, "seed": number},
        **{"max_new_tokens": frames, "runaway_guard": False},
    }
    if task_type is TaskType.BASE:
        fields |= {"ref_audio": _reference(), "ref_text": "Hello."}
    return json.dumps(fields).encode()


@cache
def _reference() -> str:
    """Returns a second of audio as a data URL: how long encoding it takes is the machine's."""
    file = io.BytesIO()
    with wave.open(file, "wb") as audio:
        audio.setparams((1, 2, FAMILY.sample_rate, 0, "NONE", ""))
        audio.writeframes(random.Random(0).randbytes(_BYTES_PER_SECOND))
    return "data:audio/wav;base64," + base64.b64encode(file.getvalue()).decode()
