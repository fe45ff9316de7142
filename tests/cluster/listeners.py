"""Clients that request one stream after the other."""

from __future__ import annotations

import threading
from typing import Self

import httpx

from cluster import speech
from cluster.client import ApiError, wait_until
from cluster.pipeline import Pipeline

PAUSE_AFTER_FAILURE = 1.0


class Listeners:
    """Clients of a pipeline in threads of their own. Leaving `with` waits for the streams in progress."""

    def __init__(self, pipeline: Pipeline, clients: int = 1, text: str = speech.SENTENCE) -> None:
        self.streams: list[bytes] = []
        """PCM of each complete stream."""
        self.failures: list[str] = []
        """Error of each request that failed."""
        self._pipeline = pipeline
        self._text = text
        self._leave = threading.Event()
        self._threads = [threading.Thread(target=self._listen) for _ in range(clients)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave.set()
        for thread in self._threads:
            thread.join(2 * speech.SPEAK_SECONDS)

    def wait(self, count: int) -> None:
        """Waits until `count` requests that are sent from now on have been served."""
        # Those in progress are not among them.
        target = len(self.streams) + len(self._threads) + count
        wait_until(f"{count} more streams", speech.SPEAK_SECONDS, lambda: len(self.streams) >= target)

    def _listen(self) -> None:
        while not self._leave.is_set():
            try:
                pcm = speech.stream(self._pipeline.cluster, self._pipeline.name, self._text, on_audio=lambda: None)
                self.streams.append(pcm)
            except (ApiError, httpx.HTTPError) as error:
                self.failures.append(f"{type(error).__name__}: {error}")
                self._leave.wait(PAUSE_AFTER_FAILURE)
