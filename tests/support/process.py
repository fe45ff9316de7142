"""A stage as a real process, started as in a pod."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.http_client import HTTP
from support.waiting import until_blocking
from syrinx_stages.connector.server import RedisServer

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


class StageProcess:
    """One stage process. `prefix` is prepended to its command; `module` is run instead of the stage's."""

    def __init__(
        self,
        stage: str,
        directory: Path,
        redis: RedisServer | None,
        *,
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        module: str | None = None,
        **config: object,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{stage}.json"
        path.write_text(json.dumps({"pipeline": "pods", "generation": "g", "model": "bundled", **config}))
        own = {"POD_NAME": f"pods-{stage}-0", "REDIS_URL": "redis://127.0.0.1:1/0"}
        if redis is not None:
            own |= {"REDIS_URL": redis.url, "REDIS_PASSWORD": redis.password}
        self._errors = directory / f"{stage}.err"
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, "-m", module or f"syrinx_stages.{stage}", str(path)],
                env={**os.environ, **ENVIRONMENT, **own, **(environment or {})},
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self.line: dict[str, str] = {}

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def started(self) -> "StageProcess":
        """Waits for the line with the URLs of the stage."""
        line = self.process.stdout.readline()
        assert line, self.errors
        self.line = json.loads(line)
        return self

    def reason(self) -> str | None:
        """Returns why the stage is not ready, or None if it is."""
        answer = HTTP.get(f"{self.line['admin_url']}/readyz")
        return None if answer.status_code == 200 else answer.text.strip()

    def ready(self) -> "StageProcess":
        """Waits until the stage is ready."""
        until_blocking(lambda: self.process.poll() is not None or self.reason() is None, "it was ready")
        assert self.process.poll() is None, self.errors
        return self

    def __enter__(self) -> "StageProcess":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()
