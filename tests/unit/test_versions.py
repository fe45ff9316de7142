"""What another version wrote or declared is read as far as this version knows it."""

import msgspec
import pytest

from syrinx_operator.cluster.objects.state import InvalidSpec, parse_pipeline, unknown_fields
from syrinx_operator.resource.spec import API_VERSION, TalkerSpec, TTSPipeline
from syrinx_operator.resource.state.status import StageStatus
from syrinx_operator.resource.versions import read_known, without_unknown


def live(spec, version=API_VERSION):
    return {"apiVersion": version, "kind": "TTSPipeline", "metadata": {"name": "demo", "uid": "1"}, "spec": spec}


NEWER = {
    "melodies": ["a"],
    "talker": {"replicas": 2, "pitch": 3, "vllm": None},
    "codec": {"capturePairs": [{"rows": 1, "frames": 4, "priority": 1}], "env": []},
    "gateway": {"podTemplate": {"spec": {"unheardOf": 1}}, "podLabels": {"any": "label"}},
}


def test_unknown_fields_are_found_at_every_depth():
    known, unknown = without_unknown(live(NEWER), TTSPipeline)
    assert set(unknown) == {
        ("metadata", "uid"),
        ("spec", "melodies"),
        ("spec", "talker", "pitch"),
        ("spec", "codec", "capturePairs", 0, "priority"),
    }
    assert known["spec"]["talker"] == {"replicas": 2, "vllm": None}
    assert known["spec"]["gateway"] == NEWER["gateway"], "maps and pod templates have any fields"


def test_a_pipeline_is_read_without_unknown_fields():
    assert parse_pipeline(live(NEWER)).spec.talker == TalkerSpec(replicas=2)
    assert unknown_fields(live(NEWER)) == "spec.melodies, spec.talker.pitch, spec.codec.capturePairs[0].priority"
    assert unknown_fields(live({"talker": {"replicas": 2}})) == ""


def test_many_unknown_fields_are_counted():
    names = {f"field{n}": n for n in range(14)}
    assert unknown_fields(live(names)).endswith("spec.field9 and 4 more")


@pytest.mark.parametrize(
    ("spec", "named", "hinted"),
    [
        ({"topology": "Ring"}, "spec.topology: 'Ring' is not accepted; expected", True),
        ({"talker": {"replicas": 1000}}, "spec.talker.replicas: 1000 is not accepted", True),
        ({"model": {"tape": "x"}}, "spec.model: set exactly one of", False),
        ({"codec": {"maxNumSeqs": 99, "maxResident": 9}}, "spec.codec.maxNumSeqs", False),
    ],
)
def test_a_value_that_this_operator_does_not_know_is_named(spec, named, hinted):
    with pytest.raises(InvalidSpec) as invalid:
        parse_pipeline(live(spec))
    message = str(invalid.value)
    assert named in message and ("a newer operator may know it" in message) is hinted
    assert ("ignores spec.model.tape" in message) is ("model" in spec)


def test_a_required_part_that_is_missing_or_unreadable_is_an_error():
    for value in ({"replicas": 1}, {"replicas": "many"}, []):
        with pytest.raises(msgspec.ValidationError):
            read_known(value, StageStatus)
