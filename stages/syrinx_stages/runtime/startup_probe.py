"""The startup probe of a pod: one command that waits until the stages of the pod are ready.

    python -m syrinx_stages.runtime.startup_probe STAGE SECONDS CONFIG.json...

The kubelet writes a Warning event for each probe that fails, so probes that ask again and again until the model is
loaded make a healthy start look like trouble. The process runs in the container of the stages, so it imports little.
"""

import http.client
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from syrinx_stages.contract.settings import StageConfig
from syrinx_stages.contract.stages import Stage

PERIOD_SECONDS = 0.5
"""Between two requests to the stages."""
ANSWER_SECONDS = 5.0
"""Time limit of a request."""
_NO_ANSWER = "no answer"


def wait(stage: Stage, seconds: float, configs: Sequence[StageConfig]) -> str:
    """Waits until the processes with these configurations are ready. Returns why they are not after `seconds`, or "".

    A gateway is ready only once there are talkers and codecs, however long that takes: it fails if it does not answer
    for `seconds`.
    """
    deadline = time.monotonic() + seconds
    while True:
        reasons = [reason for config in configs if (reason := _unready(config))]
        if not reasons:
            return ""
        if stage is Stage.GATEWAY and _NO_ANSWER not in reasons:
            deadline = time.monotonic() + seconds
        elif time.monotonic() >= deadline:
            return f"not ready after {seconds:g} s: {'; '.join(reasons)}"
        time.sleep(PERIOD_SECONDS)


def _unready(config: StageConfig) -> str:
    """Returns why a process is not ready; empty if it is."""
    host = "localhost" if config.host in ("", "::") else config.host
    connection = http.client.HTTPConnection(host, config.admin_port, timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return _NO_ANSWER
    finally:
        connection.close()
    return "" if answer.status == http.client.OK else text.partition("\n")[0]


def main() -> None:
    """Exits with status 0 once the stages are ready, otherwise with the reason, which the kubelet repeats."""
    stage, seconds, *files = sys.argv[1:]
    configs = [msgspec.json.decode(Path(file).read_bytes(), type=StageConfig) for file in files]
    if reason := wait(Stage(stage), float(seconds), configs):
        sys.exit(reason)


if __name__ == "__main__":
    main()
