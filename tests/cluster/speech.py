"""Speech requests to the pipeline's Service through the API server's proxy."""

from __future__ import annotations

import io
import json
import math
import threading
import wave
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np

from cluster.client import ApiError, Kubernetes, wait_until

SENTENCE = "The old teacher found two heavy bags near the river."
LONG = " ".join([SENTENCE, "Her brother bought seven green apples.", "The farmer opened the garden gate."] * 2)
STREAMS = 4
"""Number of simultaneous streams."""
HALF_A_MINUTE = " ".join([LONG] * 2)
SPEAK_SECONDS = 120.0
"""Timeout for an utterance on a slow CPU."""
QUIET = 0.01
"""Root mean square of a signal in -1..1 below which it counts as silence."""


def service_path(cluster: Kubernetes, pipeline: str, path: str) -> str:
    """Returns the proxied URL path of a pipeline's Service."""
    port = cluster.get("Service", f"{pipeline}-gateway")["spec"]["ports"][0]["port"]  # type: ignore[index]
    return cluster.path("Service", f"{pipeline}-gateway:{port}", "proxy") + path


def speak(cluster: Kubernetes, pipeline: str, text: str = SENTENCE, seed: int = 7) -> np.ndarray:
    """Returns the samples of an utterance, -1..1 at 24 kHz. Raises ApiError if it is refused."""
    body = {"input": text, "voice": "us", "seed": seed, "response_format": "wav"}
    response = cluster.call(
        "POST",
        service_path(cluster, pipeline, "/v1/audio/speech"),
        content=json.dumps(body),
        headers={"Content-Type": "application/json"},
        timeout=SPEAK_SECONDS,
    )
    return samples(response.content)


def stream(cluster: Kubernetes, pipeline: str, text: str, on_audio: Callable[[], object], seed: int = 7) -> bytes:
    """Returns the PCM of a live stream; `on_audio` is called once, after the first chunk."""
    body = {"input": text, "voice": "us", "seed": seed, "response_format": "pcm", "stream": True}
    pcm = bytearray()
    with cluster.stream(
        "POST",
        service_path(cluster, pipeline, "/v1/audio/speech"),
        content=json.dumps(body),
        headers={"Content-Type": "application/json"},
        timeout=httpx.Timeout(30.0, read=SPEAK_SECONDS),
    ) as response:
        if response.status_code != 200:
            raise ApiError(response.status_code, response.read().decode("utf-8", "replace"))
        for chunk in response.iter_bytes():
            if not pcm:
                on_audio()
            pcm += chunk
    return bytes(pcm)


def together(cluster: Kubernetes, pipeline: str, disturb: Callable[[], object] = lambda: None) -> list[bytes]:
    """Returns the PCM of several streams of half a minute, which are all in progress until `disturb` returns.

    Raises what a stream raises.
    """
    audible = [threading.Event() for _ in range(STREAMS)]
    with ThreadPoolExecutor(STREAMS) as listeners:
        streams = [
            listeners.submit(stream, cluster, pipeline, HALF_A_MINUTE, each.set, seed)
            for seed, each in enumerate(audible)
        ]
        wait_until(
            "all streams to have audio",
            SPEAK_SECONDS,
            lambda: all(each.is_set() for each in audible) or any(each.done() for each in streams),
        )
        disturb()
        assert not any(each.done() and not each.exception() for each in streams), "a stream was over too early"
        return [each.result() for each in streams]


def difference(pcm: bytes, expected: bytes) -> float:
    """Returns the maximum difference of the samples (of 32768); infinity for PCM of different lengths."""
    if len(pcm) != len(expected):
        return math.inf
    return float(np.abs(np.frombuffer(pcm, "<i2").astype(int) - np.frombuffer(expected, "<i2")).max())


def samples(wav: bytes) -> np.ndarray:
    """Returns a WAV file's samples, -1..1. Raises wave.Error, or AssertionError if it is not 24 kHz mono."""
    with wave.open(io.BytesIO(wav)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24_000, 1, 2)
        return np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768


def is_speech(audio: np.ndarray) -> bool:
    """Returns whether the audio has a plausible length and volume."""
    return bool(audio.size > 24_000 and np.sqrt(np.mean(audio**2)) > QUIET)


def condition(body: dict[str, Any] | None, kind: str) -> dict[str, Any]:
    """Returns a condition of the resource; empty if absent."""
    conditions = ((body or {}).get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each["type"] == kind), {})
