"""A short soak: every replica, the network and a Redis with Sentinel fail while listeners listen."""

import re
from pathlib import Path

from soak.report import page, report
from soak.run import Plan, run

MINUTES = 3.0


async def test_minutes_of_all_faults_lose_nothing(tmp_path: Path) -> None:
    plan = Plan(minutes=MINUTES)
    outcome = await run(plan, tmp_path)
    result = report(plan, outcome, "")
    assert (result.lost, result.wrong) == (0, 0), result.failures
    assert sum(result.faults.values()) >= 10
    assert re.search(rf"\| requests +\| +{result.requests} \|", page(result))
