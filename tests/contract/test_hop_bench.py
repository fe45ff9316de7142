"""Tests of the hop benchmark on a small case."""

import msgspec
import pytest

from hop import naive, syrinx
from hop.cases import CASES, WARM_UP_STEPS
from hop.measure import measure
from hop.report import Report, report, row, table
from syrinx_stages.contract.keys import StreamKind


@pytest.mark.parametrize("kind", [StreamKind.CODES, StreamKind.AUDIO])
def test_both_loops_see_every_entry_and_the_table_shows_it(kind):
    case = next(case for case in CASES if case.kind is kind)
    case = msgspec.structs.replace(case, streams=3)
    hops = [measure(case, loop.write, loop.read, 20 * case.period) for loop in (syrinx, naive)]
    for hop in hops:
        assert hop.entries == 20 * 3, f"the first {WARM_UP_STEPS} steps are not counted"
        assert 0 < hop.p50_ms <= hop.p99_ms <= hop.max_ms
        assert all(seconds >= 0 for seconds in hop.cpu_ms.values())
    result = report([row(case, *hops)], "6.2")
    assert msgspec.json.decode(msgspec.json.encode(result), type=Report) == result
    assert f"| {kind} | 3 | {hops[0].p50_ms} | {hops[0].p99_ms} |" in table(result)
