"""Sends messages to the client of a WebSocket."""

import asyncio
import json
from typing import Any

from starlette.types import Message, Send

from syrinx_stages.gateway.http.delivery import SEND_SECONDS, ClientDisconnected

NORMAL, POLICY, INTERNAL, RESTART = 1000, 1008, 1011, 1012
"""Codes with which connections are closed: by the client's wish, for a limit, after a failure, in a drain."""


class Sender:
    """The client's end of a WebSocket. Each method returns when the transport has taken the message.

    Raises `ClientDisconnected`, also if the client accepts no data.
    """

    def __init__(self, send: Send) -> None:
        self._send = send

    async def json(self, content: dict[str, Any]) -> None:
        """Sends JSON as text."""
        await self.message({"type": "websocket.send", "text": json.dumps(content)})

    async def binary(self, data: bytes) -> None:
        """Sends a binary message."""
        await self.message({"type": "websocket.send", "bytes": data})

    async def close(self, code: int, reason: str = "") -> None:
        """Closes the connection."""
        await self.message({"type": "websocket.close", "code": code, "reason": reason})

    async def message(self, message: Message) -> None:
        """Sends a message of ASGI."""
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await self._send(message)
        except (TimeoutError, OSError, RuntimeError):
            raise ClientDisconnected from None
