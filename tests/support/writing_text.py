"""The text of a request on its way to the talker, as a gateway writes it."""

import random

from syrinx_stages.connector.base import Behind, Gone, StreamEntry
from syrinx_stages.connector.redis.streams import RedisConnector
from syrinx_stages.contract.keys import END_SEQUENCE, STREAM_CREATED, Position, StreamKind
from syrinx_stages.contract.messages import SpeechRequest, Text, TextEnd


class Writer:
    """Writes the text of a request as a gateway does."""

    def __init__(self, connector: RedisConnector, item: SpeechRequest) -> None:
        self.connector, self.item = connector, item
        self.at, self.after = len(item.text), STREAM_CREATED

    async def write(self, text: str) -> Gone | Behind | None:
        self.at += len(text)
        return await self._append(Position(self.at), Text(text))

    async def end(self) -> Gone | Behind | None:
        return await self._append(Position(self.at, END_SEQUENCE), TextEnd())

    async def _append(self, at: Position, entry: Text | TextEnd) -> Gone | Behind | None:
        event = StreamEntry(self.item.id, StreamKind.TEXT, at, entry)
        outcome = await self.connector.append_text(self.item.id, self.after, [event])
        self.after = at
        return outcome


def cuts(text: str, chance: random.Random) -> list[str]:
    """Returns a text in pieces of a few characters."""
    pieces = []
    while text:
        size = chance.choice((1, 2, 5, 12))
        pieces.append(text[:size])
        text = text[size:]
    return pieces
