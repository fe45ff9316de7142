"""Tests of the hop benchmark on a small case."""

import msgspec
import pytest

from hop import naive, sides
from hop.cases import CASES, WARM_UP_STEPS
from hop.measure import measure
from hop.report import Report, report, row, table
from syrinx_stages.contract.keys import StreamKind


@pytest.mark.parametrize("kind", [StreamKind.CODES, StreamKind.AUDIO])
def test_both_loops_see_every_entry_and_the_table_shows_it(kind):
    case = next(case for case in CASES if case.kind is kind)
    case = msgspec.structs.replace(case, streams=3)
    ours, naive_hop = (measure(case, side.write, side.read, 20 * case.period) for side in (sides, naive))
    for hop in (ours, naive_hop):
        assert hop.entries == 20 * 3, f"all but those of {WARM_UP_STEPS} steps"
        assert 0 < hop.p50_ms <= hop.p99_ms <= hop.max_ms
        assert all(spent >= 0 for spent in hop.cpu_ms.values())
    found = report([row(case, ours, naive_hop)], "6.2")
    assert msgspec.json.decode(msgspec.json.encode(found), type=Report) == found
    assert f"| {kind} | 3 | {ours.p50_ms} | {ours.p99_ms} |" in table(found)
