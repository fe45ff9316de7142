"""Measures the time to the first audio of streamed text: `python -m first_audio URL [--rounds N]`, URL of a gateway.

A text goes to the gateway as a whole, at once on a WebSocket, and word by word as from an LLM, in turn. Times are from
the request, or from the end of the first and of the second complete word, to the first audio.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Sequence

import httpx
from websockets.asyncio.client import connect

TEXT = "The old teacher found two heavy bags near the river and carried them home after the storm."
WORD_SECONDS = 0.1


async def whole(url: str, text_at_once: bool) -> list[float]:
    """Returns the seconds to the first audio of a request with the whole text."""
    body = {"input": TEXT, "response_format": "pcm", "stream": True, "non_streaming_mode": text_at_once}
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        await client.get("/health")  # Connects.
        began = time.perf_counter()
        async with client.stream("POST", "/v1/audio/speech", json=body) as response:
            response.raise_for_status()
            async for _ in response.aiter_raw():
                return [time.perf_counter() - began]
    raise RuntimeError("no audio")


async def streamed(url: str, pieces: Sequence[str], complete: Sequence[int]) -> list[float]:
    """Sends a piece every `WORD_SECONDS`. Returns the seconds from each piece with a number in `complete` to the audio.

    Negative if the audio came before the piece.
    """
    sent: list[float] = []
    enough = asyncio.Event()
    async with connect(url.replace("http", "ws", 1) + "/v1/audio/speech/stream", proxy=None) as socket:
        await socket.send(json.dumps({"type": "session.config", "text_mode": "tokens"}))

        async def write() -> None:
            began = time.perf_counter()
            for number, piece in enumerate(pieces):
                await asyncio.sleep(max(0.0, began + number * WORD_SECONDS - time.perf_counter()))
                await socket.send(json.dumps({"type": "input.text", "text": piece}))
                sent.append(time.perf_counter())
                if number == max(complete):
                    enough.set()
            await socket.send(json.dumps({"type": "input.done"}))

        writing = asyncio.create_task(write())
        try:
            async for message in socket:
                if isinstance(message, bytes):
                    arrived = time.perf_counter()
                    await enough.wait()
                    return [arrived - sent[number] for number in complete]
                if json.loads(message)["type"] == "error":
                    raise RuntimeError(message)
        finally:
            writing.cancel()
    raise RuntimeError("no audio")


async def measure(url: str, rounds: int) -> dict[str, list[list[float]]]:
    """Returns, for each way to send the text, the seconds of each round: from the first word, and the second one."""
    words = TEXT.split(" ")
    after = [f"{word} " for word in words[:-1]] + words[-1:]
    before = words[:1] + [f" {word}" for word in words[1:]]
    results: dict[str, list[list[float]]] = {}
    for number in range(rounds + 1):
        # With the space before it, a word is complete when the next one comes.
        calls = {
            "whole request": whole(url, True),
            "whole request, non_streaming_mode: false": whole(url, False),
            "all text at once on a WebSocket": streamed(url, [TEXT], [0]),
            'word by word, "word "': streamed(url, after, [0, 1]),
            'word by word, " word"': streamed(url, before, [1, 2]),
        }
        for name, call in calls.items():
            seconds = await call
            if number:  # The first round warms up.
                results.setdefault(name, []).append(seconds)
    return results


def main() -> None:
    """Prints milliseconds, and the ratio to those of a whole request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    results = asyncio.run(measure(arguments.url, arguments.rounds))
    reference = statistics.median(seconds for (seconds,) in results["whole request"])
    columns = f"{'median':>7} {'min':>5} {'max':>5}  ratio"
    print(f"{'':40} {'from the first word':^26}   {'from the second word':^26}\n{'':40} {columns}   {columns}")
    for name, rows in results.items():
        print(f"{name:40} {'   '.join(_summary(seconds, reference) for seconds in zip(*rows, strict=True))}")


def _summary(seconds: Sequence[float], reference: float) -> str:
    median, least, most = (1e3 * each for each in (statistics.median(seconds), min(seconds), max(seconds)))
    return f"{median:7.0f} {least:5.0f} {most:5.0f}  {median / 1e3 / reference:5.2f}"


if __name__ == "__main__":
    main()
