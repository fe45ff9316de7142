"""Simulated clients of the HTTP API: they speak ASGI with a gateway and keep what they receive."""

import asyncio
import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from support.simulation.processes import Gateway

CONNECT_SECONDS = 0.2
"""Pause before a client looks for a gateway again."""


@dataclass
class Wish:
    """What a client asks for, and how it behaves."""

    number: int
    at: float
    frames: int
    sentences: int = 1
    """Several are checked, and each is heard once it is complete."""
    stream: str | None = "audio"
    """`audio`, `sse` or, for a whole file, None."""
    read_seconds: float = 0.0
    """How long the client takes to read a chunk."""

    def body(self) -> bytes:
        """Returns the request's body."""
        fields: dict[str, Any] = {
            "input": " ".join(["Hello."] * self.sentences), "response_format": "pcm", "seed": self.number,
            "max_new_tokens": self.frames, "runaway_guard": self.sentences > 1,
        }  # fmt: skip
        if self.stream is not None:
            fields |= {"stream": True, "stream_format": self.stream}
        return json.dumps(fields).encode()


@dataclass
class Client:
    """One client and its request."""

    wish: Wish
    gateway: Gateway | None = None
    request_id: str = ""
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    received: bytearray = field(default_factory=bytearray)
    """The body."""
    complete: bool = False
    """The response has ended as it should."""
    over_at: float | None = None
    """When the exchange ended, in seconds of the run."""
    departed: bool = False
    cut_off: bool = False
    """The gateway has closed the connection."""

    async def run(self, gateways: Sequence[Gateway]) -> None:
        """Sends the request to a gateway that is ready, and reads the response."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self.wish.at)
        while self.gateway is None:
            ready = [gateway for gateway in gateways if gateway.serves and not gateway.process.paused]
            if ready:
                self.gateway = ready[self.wish.number % len(ready)]
            else:
                await asyncio.sleep(CONNECT_SECONDS)
        self._disconnected = asyncio.Event()
        over = asyncio.Event()
        response = self.gateway.serve(self._exchange(), self._cut_off(over))
        response.add_done_callback(lambda _: over.set())
        await over.wait()
        self.over_at = loop.time()

    def _cut_off(self, over: asyncio.Event) -> Any:
        def cut_off() -> None:
            self.cut_off = True
            self._disconnected.set()
            over.set()

        return cut_off

    def depart(self) -> None:
        """Closes the connection, if a request is in progress."""
        if self.gateway is not None and self.over_at is None:
            self.departed = True
            with self.gateway.cluster.loop.within(self.gateway.process):
                self._disconnected.set()

    async def _exchange(self) -> None:
        assert self.gateway is not None
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": "/v1/audio/speech", "raw_path": b"/v1/audio/speech", "root_path": "", "query_string": b"",
            "headers": [(b"content-type", b"application/json")], "client": ("client", self.wish.number),
            "server": ("gateway", 80),
        }  # fmt: skip
        sent = False

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": self.wish.body(), "more_body": False}
            await self._disconnected.wait()
            return {"type": "http.disconnect"}

        await self.gateway.app(scope, receive, self._send)

    async def _send(self, message: dict[str, Any]) -> None:
        if self.departed or self.cut_off:
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
            self.request_id = self.headers.get("x-request-id", "")
            return
        self.received += message.get("body", b"")
        self.complete = not message.get("more_body", False)
        if self.wish.read_seconds:
            await asyncio.sleep(self.wish.read_seconds)

    def audio(self) -> bytes:
        """Returns the PCM that has arrived, with pauses between the sentences."""
        if self.status != 200 or self.wish.stream != "sse":
            return bytes(self.received) if self.status == 200 else b""
        deltas = (event for event in self.events() if event["type"] == "speech.audio.delta")
        return b"".join(base64.b64decode(event["audio"]) for event in deltas)

    def events(self) -> list[dict[str, Any]]:
        """Returns the server-sent events that have arrived whole."""
        blocks = bytes(self.received).split(b"\n\n")[:-1]
        return [json.loads(block.removeprefix(b"data: ")) for block in blocks]

    @property
    def succeeded(self) -> bool:
        """Everything has arrived, by the response's own account."""
        if self.status != 200 or not self.complete:
            return False
        return self.wish.stream != "sse" or self.events()[-1]["type"] == "speech.audio.done"
