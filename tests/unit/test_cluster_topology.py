"""A pipeline with colocated talkers and codecs: its objects, rollout and metrics."""

import msgspec
import pytest

from support.cluster_plan import EMPTY, document, owner_of, parsed, planned
from syrinx_operator.cluster.plan.rollout import stage_rollout
from syrinx_operator.cluster.prometheus import _Series, snapshots
from syrinx_operator.cluster.state import Component, Replica
from syrinx_stages.contract.settings import ReportedSettings

PIPELINE = parsed(document("colocated"))
TALKER, CODEC = Component.TALKER, Component.CODEC


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
    found = stage_rollout(TALKER, release, 2, observed, {TALKER: 7, CODEC: 3}, surge=False, fixed=False)
    assert found.partition == expected


def test_a_gateway_on_a_lost_node_does_not_keep_the_last_old_replica():
    template = plan().release.templates[TALKER]
    pods = [replica(1, TALKER, template.hash, 7), replica(0, TALKER, "old", 7)]
    pods[1] = msgspec.structs.replace(pods[1], model_generation="older")
    gateway = Replica(name="near-gateway-a", component=Component.GATEWAY, template="", model_generation="g", ready=True)
    old = msgspec.structs.replace(
        gateway, name="near-gateway-b", model_generation="older", ready=False, terminating=True
    )
    release = msgspec.structs.replace(plan().release, generation="g", templates={TALKER: template})

    def partition(**fields):
        gateways = [gateway, msgspec.structs.replace(old, **fields)]
        observed = msgspec.structs.replace(EMPTY, replicas=(*pods, *gateways))
        return stage_rollout(TALKER, release, 2, observed, {TALKER: 7}, surge=True, fixed=False).partition

    assert partition() == 1, "it may still have streams"
    assert partition(stuck=True) == 0


def test_prometheus_distinguishes_the_stages_in_a_pod():
    series = msgspec.convert(
        [
            {
                "metric": {"__name__": name, "pod": "near-talker-0", "stage": stage, **labels},
                "values": [[1_000_000_000, "5"]],
            }
            for name, stage, labels in (
                ("syrinx_frames_total", "talker", {}),
                ("syrinx_frames_total", "codec", {}),
                ("syrinx_max_num_seqs", "talker", {}),
                ("syrinx_max_num_seqs", "codec", {}),
                ("syrinx_prefill_seconds_count", "talker", {}),
                ("syrinx_codec_padded_frames_total", "codec", {}),
                ("syrinx_codec_captured_shapes", "codec", {}),
            )
        ],
        list[_Series],
    )
    found = snapshots(owner_of(PIPELINE), series)
    assert [(each.replica, each.stage) for each in found] == [("near-talker-0", "talker"), ("near-talker-0", "codec")]
