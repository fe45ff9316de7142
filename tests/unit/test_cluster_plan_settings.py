"""Live settings, replica counts and rollouts in plans for an observed cluster."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.cluster_plan import EMPTY, after, objects, pipeline, planned, replica
from syrinx_operator.cluster.state import Component, ObjectKey
from syrinx_stages.contract.settings import ReportedSettings

TALKERS = ObjectKey("StatefulSet", "demo-talker")
TALKER_SETTINGS = ObjectKey("ConfigMap", "demo-talker")
AUTOSCALED = frozenset({TALKERS})


def talker(rows):
    return pipeline({"talker": {"maxNumSeqs": rows}})


def reporting(generation):
    reported = ReportedSettings(generation, {}, {})
    return (replica("talker", 0, "t", reported=reported), replica("talker", 1, "t"))


def generation(plan):
    return plan.settings[Component.TALKER].generation


def test_the_settings_generation_starts_at_one_and_counts_changes():
    first = planned(talker(8))
    assert generation(first) == 1
    assert generation(planned(talker(8), after(first))) == 1
    second = planned(talker(9), after(first))
    assert (generation(second), second.settings[Component.TALKER].settings["max_num_seqs"]) == (2, 9)
    assert second.settings[Component.CODEC] == first.settings[Component.CODEC]
    assert generation(planned(talker(8), after(second))) == 3


def with_objective(*milliseconds):
    return pipeline({"slo": {"ttfa": [{"taskType": "CustomVoice", "ttfaP95Ms": each} for each in milliseconds]}})


def test_an_edit_of_the_objectives_is_a_live_setting_of_the_gateways():
    first = planned(with_objective(300))
    assert first.settings[Component.GATEWAY].settings["ttfa_seconds"] == {"CustomVoice": 0.3}
    second = planned(with_objective(500), after(first))
    third = planned(with_objective(), after(second))
    assert [each.settings[Component.GATEWAY].generation for each in (first, second, third)] == [1, 2, 3]
    assert third.settings[Component.GATEWAY].settings["ttfa_seconds"] == {}, "sent, or the gateways would keep theirs"
    assert first.templates == second.templates == third.templates, "no pod is replaced"
    others = (Component.TALKER, Component.CODEC)
    assert [first.settings[each] for each in others] == [third.settings[each] for each in others]


@pytest.mark.parametrize("text", [None, "", "not JSON", '{"generation": "x"}'])
def test_after_a_lost_config_map_the_generation_exceeds_all_known_ones(text):
    lost = after(planned(talker(8)))
    if text is None:
        del lost.objects[TALKER_SETTINGS]
    else:
        lost.objects[TALKER_SETTINGS]["data"] = {"settings.json": text}
    assert generation(planned(talker(8), lost)) == 1
    assert generation(planned(talker(8), after(planned(talker(8)), lost, replicas=reporting(7)))) == 8
    known = msgspec.structs.replace(lost, status_generations={Component.TALKER: 12}, replicas=reporting(7))
    assert generation(planned(talker(8), known)) == 13


def test_settings_of_others_are_overridden():
    first = planned(talker(8))
    assert generation(planned(talker(8), after(first, replicas=reporting(1)))) == 1
    overruled = planned(talker(8), after(first, replicas=reporting(2)))
    assert generation(overruled) == 3
    assert generation(planned(talker(8), after(overruled, replicas=reporting(3)))) == 3


@given(steps=st.lists(st.tuples(st.integers(1, 32), st.integers(0, 50), st.booleans()), max_size=8))
def test_generations_never_decrease(steps):
    observed, last, rows_before = EMPTY, 0, None
    for rows, reported, lost in steps:
        known = max(reported, last if observed.objects else 0)
        observed = msgspec.structs.replace(
            observed, replicas=reporting(reported), status_generations={Component.TALKER: last}
        )
        if lost:
            observed = msgspec.structs.replace(observed, objects={})
        plan = planned(talker(rows), observed)
        assert generation(plan) >= max(known, last, 1)
        if generation(plan) == last:
            assert rows == rows_before
        observed, last, rows_before = after(plan, observed), generation(plan), rows


def scaled(replicas, manager, subresource="scale"):
    """Returns the observed state after an autoscaler or another manager has set the talkers' replicas."""
    observed = after(planned(pipeline()), autoscaled=AUTOSCALED)
    workload = observed.objects[TALKERS]
    owned = {"manager": manager, "subresource": subresource, "fieldsV1": {"f:spec": {"f:replicas": {}}}}
    ours = {"manager": "syrinx-operator", "fieldsV1": {"f:spec": {"f:template": {}}}}
    workload["metadata"] |= {"resourceVersion": "41", "managedFields": [ours, owned]}
    workload["spec"]["replicas"] = replicas
    return observed


def test_an_autoscalers_replica_count_is_not_applied():
    plan = planned(pipeline({"talker": {"replicas": 3}}), scaled(5, "kube-controller-manager"))
    workload = objects(plan)[TALKERS]
    assert "replicas" not in workload["spec"] and "resourceVersion" not in workload["metadata"]
    assert plan.replicas[Component.TALKER] == 5
    assert ObjectKey("PodDisruptionBudget", "demo-talker") in objects(plan)


def test_before_an_autoscaler_owns_the_count_the_live_one_is_applied_with_a_precondition():
    plan = planned(pipeline({"talker": {"replicas": 3}}), scaled(2, "syrinx-operator", ""))
    workload = objects(plan)[TALKERS]
    assert (workload["spec"]["replicas"], workload["metadata"]["resourceVersion"]) == (2, "41")
    newer = scaled(2, "syrinx-operator", "")
    newer.objects[TALKERS]["metadata"]["resourceVersion"] = "42"
    hashes = [
        objects(p)[TALKERS]["metadata"]["annotations"]["syrinx.dev/applied"] for p in (plan, planned(pipeline(), newer))
    ]
    assert hashes[0] == hashes[1], "or every apply would call for the next"


def first_new(plan):
    return objects(plan)[TALKERS]["spec"]["updateStrategy"]["rollingUpdate"]["partition"]


THREE = pipeline({"talker": {"replicas": 3}})
"""A pipeline with running talkers whose model changes."""


def rolled(new, *, new_gateway, old_gateway=None):
    """The talkers after `new` of them have the new template, from the highest ordinal down.

    `old_gateway`: None if there is none any more, else its fields.
    """
    changed = pipeline({"talker": {"replicas": 3}, "model": {"path": "/voices/new"}})
    before = planned(THREE)
    wanted = planned(changed, after(before))
    pods = []
    for ordinal in range(3):
        plan = wanted if ordinal >= 3 - new else before
        fields = {"ready": True, "reported": ReportedSettings(1, {}, {}), "model_generation": plan.generation}
        pods.append(replica("talker", ordinal, plan.templates[Component.TALKER], **fields))
    for name, plan, fields in (("new", wanted, {"ready": new_gateway}), ("old", before, old_gateway)):
        if fields is not None:
            template = plan.templates[Component.GATEWAY]
            pods.append(replica("gateway", name, template, model_generation=plan.generation, **fields))
    return planned(changed, after(wanted, replicas=tuple(pods)))


def test_the_last_old_replica_stays_until_a_new_gateway_is_ready():
    waits = {"new_gateway": False, "old_gateway": {"ready": True}}
    assert [first_new(rolled(new, **waits)) for new in range(3)] == [2, 1, 1]


def test_without_a_model_change_no_replica_waits_for_a_gateway():
    changed = pipeline({"talker": {"replicas": 3, "env": [{"name": "A", "value": "1"}]}})
    before = planned(THREE)
    wanted = planned(changed, after(before))
    pods = tuple(
        replica(
            "talker",
            n,
            p.templates[Component.TALKER],
            ready=True,
            reported=ReportedSettings(1, {}, {}),
            model_generation=p.generation,
        )
        for n, p in enumerate((before, wanted, wanted))
    )
    assert first_new(planned(changed, after(wanted, replicas=pods))) == 0


@pytest.mark.parametrize(
    ("spec", "key"),
    [
        ({"monitoring": {"podMonitor": {}}}, ObjectKey("PodMonitor", "demo")),
        (
            {"gateway": {"route": {"httpRoute": {"parentRefs": [{"name": "g"}]}}}},
            ObjectKey("HTTPRoute", "demo-gateway"),
        ),
        (
            {
                "codec": {"autoscaling": {"by": "Keda", "maxReplicas": 2}},
                "tuning": {"prometheus": {"url": "http://prometheus"}},
            },
            ObjectKey("ScaledObject", "demo-codec"),
        ),
    ],
)
def test_an_optional_kind_is_planned_only_if_it_is_served(spec, key):
    subject = pipeline(spec)
    served, unserved = planned(subject), planned(subject, msgspec.structs.replace(EMPTY, served_kinds=frozenset()))
    assert key in objects(served) and key not in objects(unserved)
    assert objects(unserved).keys() == objects(served).keys() - {key}, "nothing else is missing"
    assert key not in objects(planned(pipeline()))
