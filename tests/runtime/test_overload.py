"""`syrinx bench --overload` against a gateway with a known schedule, in virtual time."""

import pytest

from support.http_server import serve
from support.timed_gateway import LOUD, SECOND, TimedGateway
from syrinx_operator.commands.bench import overload


@pytest.mark.virtual
async def test_a_gateway_is_measured(monkeypatch):
    monkeypatch.setattr(overload, "CLIENTS", (1, 2))
    monkeypatch.setattr(overload, "MULTIPLES", (1.0,))
    gateway = TimedGateway([(0.5, LOUD * (SECOND // 2))])
    lines = []
    async with serve(gateway.app) as url:
        report = await overload.measure(url, "", seconds=12.0, seed=0, done=lines.append)
    [run], [measured] = report.runs, report.loads
    assert (run.clients, run.ttfa_alone_ms) == (2, pytest.approx(500.0))
    assert run.capacity == pytest.approx(4.0, rel=0.1)
    assert measured.requests > 0 and measured.failed == measured.refused == 0
    assert measured.recovery_seconds == pytest.approx(0.0)
    assert len(lines) == 8, "the best number of clients is measured again before the load and after each of its parts"
    assert 0.5 < measured.throughput_share < 2
    assert run.machine in overload.describe_report(report)
