"""A pipeline with colocated talkers and codecs: its objects, rollout and metrics."""

import msgspec
import pytest

from support.cluster_plan import EMPTY, document, owner_of, parsed, planned
from syrinx_operator.cluster.objects.state import Replica, Settings
from syrinx_operator.cluster.plan.rollout import stage_rollout
from syrinx_operator.cluster.plan.workload.workloads import ReplicaCount
from syrinx_operator.cluster.watch.prometheus import _Series, snapshots
from syrinx_operator.resource.resolve import resolve
from syrinx_stages.contract.settings import ReportedSettings
from syrinx_stages.contract.stages import Stage

PIPELINE = parsed(document("colocated"))
TALKER, CODEC = Stage.TALKER, Stage.CODEC


def plan():
    return planned(PIPELINE)


def replica(number, component, template, generation):
    return Replica(
        name=f"near-talker-{number}",
        component=component,
        colocated=component is CODEC,
        template=template,
        model_generation="g",
        ready=True,
        reported=None if generation is None else ReportedSettings(generation, {}, {}),
    )


@pytest.mark.parametrize(("codec", "expected"), [(3, 0), (2, 1), (None, 1)])
def test_a_rollout_waits_for_the_settings_of_both_stages(codec, expected):
    template = plan().release.templates[TALKER]
    pods = [
        replica(1, TALKER, template.hash, 7),
        replica(1, CODEC, template.hash, codec),
        replica(0, TALKER, "old", 7),
        replica(0, CODEC, "old", 3),
    ]
    observed = msgspec.structs.replace(EMPTY, replicas=tuple(pods))
    release = msgspec.structs.replace(plan().release, generation="g", templates={TALKER: template})
    live = {TALKER: Settings(7, {}), CODEC: Settings(3, {})}
    found = stage_rollout(resolve(PIPELINE), TALKER, release, live, ReplicaCount(2), observed)
    assert found.partition == expected


@pytest.mark.parametrize(("stuck", "partition"), [(False, 1), (True, 0)])
def test_a_gateway_keeps_the_last_old_replica_unless_it_is_on_a_lost_node(stuck, partition):
    template = plan().release.templates[TALKER]
    old = msgspec.structs.replace(replica(0, TALKER, "old", 7), model_generation="older")
    gateway = Replica(name="near-gateway-a", component=Stage.GATEWAY, template="", model_generation="g", ready=True)
    ending = {"model_generation": "older", "ready": False, "terminating": True, "stuck": stuck}
    former = msgspec.structs.replace(gateway, name="near-gateway-b", **ending)
    observed = msgspec.structs.replace(EMPTY, replicas=(replica(1, TALKER, template.hash, 7), old, gateway, former))
    release = msgspec.structs.replace(plan().release, generation="g", templates={TALKER: template})
    apart = resolve(parsed(document("default")))
    found = stage_rollout(apart, TALKER, release, {TALKER: Settings(7, {})}, ReplicaCount(2), observed)
    assert found.partition == partition, "it may still have streams"


def test_prometheus_distinguishes_the_stages_in_a_pod():
    names = ("syrinx_frames_total", "syrinx_max_num_seqs")
    own = [("syrinx_prefill_seconds_count", "talker"), ("syrinx_codec_captured_shapes", "codec")]
    series = [
        {"metric": {"__name__": name, "pod": "near-talker-0", "stage": stage}, "values": [[1_000_000_000, "5"]]}
        for name, stage in (*((name, stage) for name in names for stage in ("talker", "codec")), *own)
    ]
    found = snapshots(owner_of(PIPELINE), msgspec.convert(series, list[_Series]))
    assert [(each.replica, each.stage) for each in found] == [("near-talker-0", "talker"), ("near-talker-0", "codec")]
