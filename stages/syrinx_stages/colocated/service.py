"""A talker and a codec in one process: two services on one event loop, each with its own engine thread and settings."""

import asyncio

from syrinx_stages.assembly import build_codec, build_talker
from syrinx_stages.codec.service import CodecService
from syrinx_stages.colocated.connectors import CodecConnector, SharedClaimOwner, TalkerConnector
from syrinx_stages.connector.base import StageConnector
from syrinx_stages.contract.settings import StageConfig
from syrinx_stages.runtime.errors import StartError
from syrinx_stages.runtime.telemetry.metrics import Metrics
from syrinx_stages.talker.service import TalkerService


class ColocatedService:
    """One talker replica and one codec replica. Implements `admin.Service`."""

    def __init__(self, claims: SharedClaimOwner, talker: TalkerService, codec: CodecService) -> None:
        self.talker = talker
        self.codec = codec
        self.workers = self.admin_targets = (talker, codec)
        claims.bind(talker.ownership.reclaim, talker.evict, codec.evict)
        codec.pair_with(talker)
        self.failed = talker.failed

    async def start(self) -> None:
        """Starts the codec before the talker, which claims requests as soon as it has started."""
        for worker in reversed(self.workers):
            await worker.start()

    async def drain(self, seconds: float) -> None:
        """Stops claiming; waits up to `seconds` for both stages to finish their requests."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        for worker in self.workers:
            await worker.drain(max(0.0, end - loop.time()))

    async def close(self) -> None:
        """Stops both stages before either hands its requests over: one replica takes over both parts."""
        for worker in self.workers:
            await worker.stop()
        for worker in reversed(self.workers):
            await worker.close()


def build(
    talker: StageConfig,
    talker_connector: StageConnector,
    codec: StageConfig,
    codec_connector: StageConnector,
    metrics: Metrics,
) -> tuple[ColocatedService, None]:
    """Builds both stages of a process. Raises `StartError` if their configurations do not match."""
    for field in ("pipeline", "generation", "model", "device", "drain_seconds"):
        one, other = getattr(talker, field), getattr(codec, field)
        if one != other:
            raise StartError(f"{field}: {one!r} of the talker and {other!r} of the codec cannot share a process")
    connector = TalkerConnector(talker_connector)
    talker_service, _ = build_talker(talker, connector, metrics)
    codec_service, _ = build_codec(codec, CodecConnector(codec_connector, connector), metrics)
    return ColocatedService(connector.claims, talker_service, codec_service), None
