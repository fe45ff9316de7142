"""The load of a pipeline as `syrinx tune --watch` shows it."""

from prometheus_client import CollectorRegistry

from support.http_server import ScriptedResponse, http_server
from syrinx_operator.commands.tune.command import gateway_load
from syrinx_stages.contract import metrics as m
from syrinx_stages.runtime.telemetry.exposition import Exposition
from syrinx_stages.runtime.telemetry.metrics import Metrics, series_labels


def _metrics(streams: int, waiting: int) -> bytes:
    metrics = Metrics(CollectorRegistry())
    metrics[m.LIVE_STREAMS].set(streams)
    metrics[m.QUEUE_LENGTH].set(waiting)
    return Exposition(metrics, series_labels("demo")).encode("")[0]


async def test_the_load_sums_the_streams_of_all_gateways_that_respond_and_counts_their_one_queue_once():
    async with (
        http_server(lambda request: ScriptedResponse(_metrics(3, 12))) as one,
        http_server(lambda request: ScriptedResponse(_metrics(4, 11))) as other,
    ):
        urls = [one.url, "http://127.0.0.1:1", other.url]
        assert await gateway_load(urls) == "7 live streams, 12 requests waiting"
    assert await gateway_load(["http://127.0.0.1:1"]) == await gateway_load([]) == ""
