"""Clients that request one stream after the other, in a pod: the API server's proxy cuts one stream in thousands."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Self

from cluster import listener, speech
from cluster.client import wait_until
from cluster.pipeline import Pipeline

SOURCE = Path(listener.__file__).read_text()


class Listeners:
    """Clients of a pipeline's Service. Leaving `with` waits for the streams in progress."""

    def __init__(self, pipeline: Pipeline, clients: int = 1, text: str = speech.SENTENCE) -> None:
        self.streams: list[bytes] = []
        """PCM of each complete stream, as far as it was read."""
        self.failures: list[str] = []
        """Error of each request that failed."""
        self._pipeline, self._clients, self._text = pipeline, clients, text
        self._name = f"{pipeline.name}-listeners"
        self._lines = 0
        self._pcm: dict[str, bytes] = {}

    def __enter__(self) -> Self:
        cluster = self._pipeline.cluster
        port = cluster.get("Service", f"{self._pipeline.name}-gateway")["spec"]["ports"][0]["port"]  # type: ignore[index]
        url = f"http://{self._pipeline.name}-gateway:{port}/v1/audio/speech"
        cluster.create(self._pipeline.python_pod(self._name, SOURCE, url, str(self._clients), self._text))
        self._pipeline.wait("listeners to run", lambda: self._phase() == "Running", slow=True)
        return self

    def __exit__(self, *_: object) -> None:
        cluster = self._pipeline.cluster
        try:
            cluster.execute(self._name, "python", f": > {listener.LEAVE}")
            wait_until("the listeners' last streams", 2 * speech.SPEAK_SECONDS, lambda: self._phase() == "Succeeded")
            self._collect()
        finally:
            cluster.delete("Pod", self._name, grace=0)
            wait_until("the listeners to be gone", 60, lambda: cluster.get("Pod", self._name) is None)

    def wait(self, count: int) -> None:
        """Waits until `count` requests that are sent from now on have been served."""
        self._collect()
        # Those in progress are not among them.
        target = len(self.streams) + self._clients + count

        def served() -> bool:
            self._collect()
            return len(self.streams) >= target

        wait_until(f"{count} more streams", speech.SPEAK_SECONDS, served)

    def _phase(self) -> str:
        pod = self._pipeline.cluster.get("Pod", self._name) or {}
        return str(pod.get("status", {}).get("phase"))

    def _collect(self) -> None:
        """Reads the results since the last time."""
        log = self._pipeline.cluster.call("GET", self._pipeline.cluster.path("Pod", self._name, "log")).text
        for line in log.splitlines(keepends=True)[self._lines :]:
            if not line.endswith("\n"):  # It is being written.
                break
            result = json.loads(line)
            if result["failure"]:
                self.failures.append(result["failure"])
            else:
                pcm = self._pcm.setdefault(result["digest"], base64.b64decode(result["pcm"]))
                self.streams.append(pcm)
            self._lines += 1
