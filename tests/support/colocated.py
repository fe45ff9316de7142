"""Colocated talker and codec services in the test's process."""

from support.stages import Pipeline, metrics
from syrinx_stages.codec.eager_engine import EagerCodecEngine
from syrinx_stages.codec.service import CodecService
from syrinx_stages.colocated.connectors import CodecConnector, TalkerConnector
from syrinx_stages.colocated.service import ColocatedService
from syrinx_stages.contract.settings import CodecSettings, TalkerSettings
from syrinx_stages.runtime.settings import LiveSettings
from syrinx_stages.talker.service import TalkerService

MAX_RESIDENT = 16


class ColocatedPipeline(Pipeline):
    """Any number of colocated services on one set of streams."""

    def __init__(self, url: str | None = None) -> None:
        super().__init__(url=url)
        self.processes: list[ColocatedService] = []

    async def colocated(self, replica: int = 0) -> ColocatedService:
        """Starts a service with the replicas `talker-REPLICA` and `codec-REPLICA`."""
        connector = TalkerConnector(self.connector())
        talker = TalkerService(
            connector,
            self.load_talker,
            f"talker-{replica}",
            MAX_RESIDENT,
            LiveSettings(TalkerSettings(), 1, MAX_RESIDENT),
            metrics(),
        )
        codec = CodecService(
            CodecConnector(self.connector(), connector),
            lambda: EagerCodecEngine(self.checkpoint.load_codec_decoder(), MAX_RESIDENT),
            f"codec-{replica}",
            MAX_RESIDENT,
            LiveSettings(CodecSettings(), 1, MAX_RESIDENT),
            metrics(),
        )
        process = ColocatedService(connector.claims, talker, codec)
        self.processes.append(process)
        await process.start()
        return process

    async def kill_process(self, process: ColocatedService) -> None:
        """Stops a service like SIGKILL: nothing is handed over."""
        self.processes.remove(process)
        for worker in process.workers:
            self.workers.append(worker)
            await self.kill(worker)

    async def close(self) -> None:
        for process in self.processes:
            await process.close()
        await self.streams.close()
