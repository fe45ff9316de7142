"""Live settings, replica counts and rollouts in plans for an observed cluster."""

import msgspec
import pytest

from support.cluster_plan import EMPTY, after, objects, pipeline, planned, replica
from syrinx_operator.cluster.objects.state import ObjectKey
from syrinx_stages.contract.settings import ReportedSettings
from syrinx_stages.contract.stages import Stage

TALKERS = ObjectKey("StatefulSet", "demo-talker")
TALKER_SETTINGS = ObjectKey("ConfigMap", "demo-talker")


def talker(rows):
    return pipeline({"talker": {"maxNumSeqs": rows}})


def reporting(generation):
    reported = ReportedSettings(generation, {}, {})
    return (replica("talker", 0, "t", reported=reported), replica("talker", 1, "t"))


def generation(plan):
    return plan.settings[Stage.TALKER].generation


def test_the_settings_generation_starts_at_one_and_counts_changes():
    first = planned(talker(8))
    assert generation(first) == 1
    assert generation(planned(talker(8), after(first))) == 1
    second = planned(talker(9), after(first))
    assert (generation(second), second.settings[Stage.TALKER].settings["max_num_seqs"]) == (2, 9)
    assert second.settings[Stage.CODEC] == first.settings[Stage.CODEC]
    assert generation(planned(talker(8), after(second))) == 3


def with_objective(*milliseconds):
    return pipeline({"slo": {"ttfa": [{"taskType": "CustomVoice", "ttfaP95Ms": each} for each in milliseconds]}})


def test_an_edit_of_the_objectives_is_a_live_setting_of_the_gateways():
    first = planned(with_objective(300))
    assert first.settings[Stage.GATEWAY].settings["ttfa_seconds"] == {"CustomVoice": 0.3}
    second = planned(with_objective(500), after(first))
    third = planned(with_objective(), after(second))
    assert [each.settings[Stage.GATEWAY].generation for each in (first, second, third)] == [1, 2, 3]
    assert third.settings[Stage.GATEWAY].settings["ttfa_seconds"] == {}, "sent, or the gateways would keep theirs"
    assert first.templates == second.templates == third.templates, "no pod is replaced"
    others = (Stage.TALKER, Stage.CODEC)
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
    known = msgspec.structs.replace(lost, status_generations={Stage.TALKER: 12}, replicas=reporting(7))
    assert generation(planned(talker(8), known)) == 13


def test_settings_of_others_are_overridden():
    first = planned(talker(8))
    assert generation(planned(talker(8), after(first, replicas=reporting(1)))) == 1
    overruled = planned(talker(8), after(first, replicas=reporting(2)))
    assert generation(overruled) == 3
    assert generation(planned(talker(8), after(overruled, replicas=reporting(3)))) == 3


def scaled(resource_version):
    """Returns the observed state before an autoscaler has set the talkers' replicas."""
    observed = after(planned(pipeline()), autoscaled=frozenset({TALKERS}))
    workload = observed.objects[TALKERS]
    ours = {"manager": "syrinx-operator", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
    workload["metadata"] |= {"resourceVersion": resource_version, "managedFields": [ours]}
    workload["spec"]["replicas"] = 2
    return observed


def test_before_an_autoscaler_owns_the_count_the_live_one_is_applied_with_a_precondition():
    first, second = (objects(planned(THREE, scaled(version)))[TALKERS] for version in ("41", "42"))
    assert (first["spec"]["replicas"], first["metadata"]["resourceVersion"]) == (2, "41")
    hashes = [each["metadata"]["annotations"]["syrinx.dev/applied"] for each in (first, second)]
    assert hashes[0] == hashes[1], "or every apply would call for the next"


def first_new(plan):
    return objects(plan)[TALKERS]["spec"]["updateStrategy"]["rollingUpdate"]["partition"]


THREE = pipeline({"talker": {"replicas": 3}})
"""A pipeline with running talkers whose model changes."""


def rolled(new, change):
    """The plan after `new` talkers have the template of a change, from the highest ordinal down, and no gateway."""
    changed = pipeline({"talker": {"replicas": 3}} | change)
    before = planned(THREE)
    wanted = planned(changed, after(before))
    plans = [*[before] * (3 - new), *[wanted] * new]
    settled = {"ready": True, "reported": ReportedSettings(1, {}, {})}
    pods = [
        replica("talker", n, each.templates[Stage.TALKER], model_generation=each.generation, **settled)
        for n, each in enumerate(plans)
    ]
    return planned(changed, after(wanted, replicas=tuple(pods)))


@pytest.mark.parametrize(
    ("change", "partitions"),
    [
        ({"model": {"path": "/voices/new"}}, [2, 1, 1]),
        ({"talker": {"replicas": 3, "env": [{"name": "A", "value": "1"}]}}, [2, 1, 0]),
    ],
    ids=["model", "environment"],
)
def test_the_last_replica_of_an_old_model_stays_until_a_new_gateway_is_ready(change, partitions):
    assert [first_new(rolled(new, change)) for new in range(3)] == partitions


@pytest.mark.parametrize(
    ("spec", "key"),
    [
        ({"monitoring": {"podMonitor": {}}}, ObjectKey("PodMonitor", "demo")),
        (
            {"gateway": {"route": {"httpRoute": {"parentRefs": [{"name": "g"}]}}}},
            ObjectKey("HTTPRoute", "demo-gateway"),
        ),
        (
            {"codec": {"autoscaling": {"by": "Keda", "maxReplicas": 2}}, "tuning": {"prometheus": {"url": "http://p"}}},
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
