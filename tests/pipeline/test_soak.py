"""The soak, shortened: two talkers, two codecs and a gateway under faults."""

import re
from pathlib import Path

from soak.faults import STAGE_KINDS
from soak.load import Verdict
from soak.pipeline import Replicas
from soak.report import page, report
from soak.run import Plan, run
from soak.servers import Layout


async def test_a_short_soak_loses_nothing(tmp_path: Path):
    plan = Plan(
        minutes=0.13,
        seed=3,
        layout=Layout.SINGLE,
        replicas=Replicas(gateways=1),
        interval=1.5,
        listeners=2,
        utterances=2,
        sentences=2,
    )
    outcome = await run(plan, tmp_path)
    result = report(plan, outcome, "")
    assert (result.lost, result.wrong) == (0, 0), result.failures
    assert result.requests >= 3
    assert 3 <= sum(result.faults.values()) <= 6
    assert {each.fault.kind for each in outcome.injected} <= {*STAGE_KINDS}
    assert {each.verdict for each in outcome.outcomes} <= {Verdict.COMPLETE, Verdict.REFUSED}
    assert re.search(rf"\| requests +\| +{result.requests} \|", page(result))
