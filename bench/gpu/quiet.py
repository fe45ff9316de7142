"""A codec whose utterances begin with a silent frame, as a voice does: `python -m gpu.quiet CONFIG.json`.

The audio of random weights is audible from the first sample on, so a service that trims leading silence answers sooner
than with a voice.
"""

from collections.abc import Sequence
from typing import Any, cast

from syrinx_stages import assembly
from syrinx_stages.codec.engine import CodecEngine
from syrinx_stages.codec.service import CodecService
from syrinx_stages.connector.base import StageConnector
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.settings import CapturePair, StageConfig
from syrinx_stages.contract.stages import Stage
from syrinx_stages.runtime.process import run
from syrinx_stages.runtime.signals import exit_on_signals
from syrinx_stages.runtime.telemetry.metrics import Metrics


class _Quiet:
    """An engine that silences the first frame of each request. Context is decoded, not prefilled."""

    prefill = None

    def __init__(self, engine: CodecEngine) -> None:
        self._engine = engine
        self._silent: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def open(self, request_id: str) -> None:
        self._silent.add(request_id)
        self._engine.open(request_id)

    def launch(self, ids: Sequence[str], codes: Sequence[Sequence[bytes]], shape: CapturePair) -> Any:
        first = [request_id in self._silent for request_id in ids]
        self._silent.difference_update(ids)
        return first, self._engine.launch(ids, codes, shape)

    def read(self, call: Any) -> Sequence[bytes]:
        first, launched = call
        size = FAMILY.frame_bytes
        return [
            bytes(size) + pcm[size:] if silent else pcm
            for silent, pcm in zip(first, self._engine.read(launched), strict=True)
        ]


def build_codec(config: StageConfig, connector: StageConnector, metrics: Metrics) -> tuple[CodecService, None]:
    """Returns the codec with the engine that the configuration asks for, silenced."""
    service, app = assembly.build_codec(config, connector, metrics)
    load = service._load
    service._load = lambda: cast(CodecEngine, _Quiet(load()))
    return service, app


if __name__ == "__main__":
    exit_on_signals()
    run(Stage.CODEC, "gpu.quiet:build_codec")
