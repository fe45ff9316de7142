"""`python -m hop`: that it measures what it says, on a small case."""

import msgspec
import pytest

from hop import naive, sides
from hop.cases import CASES, WARM_UP_STEPS
from hop.measure import measure
from hop.report import Report, report, row, table
from syrinx_stages.contract.keys import StreamKind


@pytest.mark.parametrize("kind", [StreamKind.CODES, StreamKind.AUDIO])
def test_every_entry_is_seen_by_both_loops_and_the_table_says_so(kind):
    case = next(case for case in CASES if case.kind is kind)
    case = msgspec.structs.replace(case, streams=3)
    ours, by_hand = (measure(case, side.write, side.read, 20 * case.period) for side in (sides, naive))
    for hop in (ours, by_hand):
        assert hop.entries == 20 * 3, f"all but those of {WARM_UP_STEPS} steps"
        assert 0 < hop.p50_ms <= hop.p99_ms <= hop.max_ms
        assert all(spent >= 0 for spent in hop.cpu_ms.values())
    found = report([row(case, ours, by_hand)], "6.2")
    assert msgspec.json.decode(msgspec.json.encode(found), type=Report) == found
    assert f"| {kind} | 3 | {ours.p50_ms} | {ours.p99_ms} |" in table(found)
