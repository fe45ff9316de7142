"""Tests of the hop benchmark on a small case."""

import msgspec
import pytest

from hop.client import read_on_redis_py, write_on_redis_py
from hop.measure import CASES, WARM_UP_STEPS, measure
from hop.report import Report, Row, report, table
from hop.sides import read, write
from syrinx_stages.contract.keys import StreamKind

pytestmark = pytest.mark.night


@pytest.mark.parametrize("kind", [StreamKind.CODES, StreamKind.AUDIO])
def test_both_clients_see_every_entry_and_the_table_shows_it(kind):
    case = next(case for case in CASES if case.kind is kind)
    case = msgspec.structs.replace(case, streams=3)
    clients = ((write, read), (write_on_redis_py, read_on_redis_py))
    hops = [measure(case, *client, 20 * case.period) for client in clients]
    for hop in hops:
        assert hop.entries == 20 * 3, f"the first {WARM_UP_STEPS} steps are not counted"
        assert 0 < hop.p50_ms <= hop.p99_ms <= hop.max_ms
        assert all(seconds >= 0 for seconds in hop.cpu_ms.values())
    result = report([Row(case, *hops)], "6.2")
    assert msgspec.json.decode(msgspec.json.encode(result), type=Report) == result
    cells = [[cell.strip() for cell in line.split("|")] for line in table(result).splitlines()]
    assert [kind, "3", str(hops[0].p50_ms), str(hops[0].p99_ms)] in [line[1:5] for line in cells]
