"""Every field of the resource changes the right manifests and restarts only the right pods."""

import re
from copy import deepcopy
from functools import cache

import msgspec
import pytest

from support.cluster_plan import DOCUMENTS, document, planned, templates
from syrinx_operator.resource.checks.rules import violations
from syrinx_operator.resource.resolve import RedisForm
from syrinx_operator.resource.spec import PipelineSpec, TTSPipeline
from syrinx_stages.contract.stages import Stage

REDIS, REDIS_HA = RedisForm.SINGLE, RedisForm.REPLICATED
GATEWAY, TALKER, CODEC = Stage.GATEWAY, Stage.TALKER, Stage.CODEC
STAGES = {GATEWAY, TALKER, CODEC}
NOBODY = set()

ELSEWHERE = (
    r"spec\.(paused|updateStrategy|rollout)\b|spec\.slo\.(underrunRatio|ttfa\.(\d+\.)?target)$|"
    r"spec\.tuning(?!\.prometheus\.(url|keda))\b|"
    r"spec\.(talker|codec)\.(standby|autoscaling\.mode)$|spec\.connector\.passwordEnv$|spec\.gateway\.(apiKeys|tls)\.\w*[fF]ile$"
)
"""Fields that only tuning, a roll-out or `syrinx up` uses."""

RESTARTED = [
    (r"spec\.image$", STAGES),
    (r"spec\.(imagePull|fixedUser$)", STAGES | {REDIS}),
    (r"spec\.serviceAccount\.", NOBODY),
    (r"spec\.topology$", {TALKER, CODEC}),
    (r"spec\.progressDeadlineSeconds$", NOBODY),
    (r"spec\.model\.name$", {GATEWAY}),
    (r"spec\.model\.cache\.storage\.", NOBODY),
    (r"spec\.model\.", STAGES),
    (r"spec\.(gateway|talker|codec)\.(replicas$|autoscaling\.)", NOBODY),
    (r"spec\.gateway\.(maxQueue|maxQueueSeconds|(service|route)\..*)$", NOBODY),
    (r"spec\.talker\.(maxNumSeqs|leadLimitSeconds)$", NOBODY),
    (r"spec\.codec\.(maxNumSeqs|chunkRamp.*|capturePairs.*)$", NOBODY),
    (r"spec\.(gateway|voices)\.", {GATEWAY}),
    (r"spec\.talker\.", {TALKER}),
    (r"spec\.codec\.", {CODEC}),
    (r"spec\.connector\.storage\.", NOBODY),
    (r"spec\.connector\.(image|podTemplate\..*|resources\..*)$", {REDIS, REDIS_HA}),
    (r"spec\.connector\.replicas$", STAGES | {REDIS_HA}),
    (r"spec\.connector\.", STAGES),
    (r"spec\.monitoring\.(scrapeAnnotations$|tracing\.)", STAGES),
    (r"spec\.(monitoring|tuning|slo)\.", NOBODY),
]
"""Components whose pods restart when a field changes; the first matching line applies."""


CHOICES = [
    *("Separate", "Colocated", "vllm", "Surge", "Replace", "Audio"),
    *("CustomVoice", "Base", "cpu", "cuda", "Always", "Never", "ClusterIP", "NodePort", "LoadBalancer", "Ignore"),
    *("PreferDualStack", "RequireDualStack", "IPv4", "IPv6", "Cluster", "Local"),
    *("Issuer", "ClusterIssuer", "Hpa", "Keda", "TriggerAuthentication", "basic"),
    *("ReadWriteOnce", "ReadWriteMany", "Exists", "Equal", "NoSchedule", "PreferNoSchedule", "Memory", ""),
]


def leaves(value, path=()):
    """Yields every scalar of a resource with its path."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, (*path, key))
    else:
        yield path, value


def others(value):
    """Returns other values of the same type, of which the schema may accept some."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1, value - 1, value + 200, value / 2, value - 2]
    return [value + "x", "1" + value, value + "1", *(choice for choice in CHOICES if choice != value)]


def edited(resource, path):
    """Returns the resource with another value at a path; None if no other value is valid."""
    for other in others(at(resource, path)):
        copy = deepcopy(resource)
        at(copy, path[:-1])[path[-1]] = other
        try:
            pipeline = msgspec.convert(copy, TTSPipeline)
        except msgspec.ValidationError:
            continue
        if not violations(pipeline):
            return pipeline
    return None


def at(resource, path):
    for key in path:
        resource = resource[key]
    return resource


def dotted(path):
    return ".".join(map(str, path))


@cache
def planned_document(name):
    pipeline = msgspec.convert(document(name), TTSPipeline)
    return pipeline, planned(pipeline)


@cache
def edits():
    """Yields every valid edit of one value of a document."""
    return [
        (name, path, pipeline)
        for name in DOCUMENTS
        for path, _ in leaves(document(name).get("spec", {}), ("spec",))
        if (pipeline := edited(document(name), path)) is not None
    ]


@pytest.mark.parametrize(("name", "path", "changed"), [pytest.param(*e, id=f"{e[0]}-{dotted(e[1])}") for e in edits()])
def test_an_edit_changes_the_plan_and_restarts_the_right_pods(name, path, changed):
    pipeline, before = planned_document(name)
    after = planned(changed)
    assert_one_generation(after, changed)
    if re.match(ELSEWHERE, dotted(path)):
        assert after.manifests == before.manifests
        return
    # Not in the record, which follows from everything, but where Kubernetes acts on it.
    assert after.manifests[1:] != before.manifests[1:]
    old, new = templates(before, pipeline), templates(after, changed)
    restarted = {component for component in old if old[component] != new.get(component)}
    assert restarted == expected(path, old.keys())
    # Otherwise the recorded template would be kept.
    assert restarted <= {component for component in old if inputs(before, component) != inputs(after, component)}


def inputs(plan, component):
    """Returns the hash of what a recorded template was rendered from; None without one."""
    found = plan.release.all_templates.get(component)
    return None if found is None else found.inputs


def expected(path, workloads):
    """Returns the components whose pods restart; a colocated codec is in the talkers' pods."""
    parts = next(components for pattern, components in RESTARTED if re.match(pattern, dotted(path)))
    return {
        part if part in workloads else TALKER for part in parts if part not in (REDIS, REDIS_HA) or part in workloads
    }


def test_the_edits_cover_every_field_of_the_resource():
    reached = set()
    for _, path, _ in edits():
        named = [key for key in path if isinstance(key, str)]
        reached |= {dotted(named[:length]) for length in range(1, len(named) + 1)}
    left = [path for path in fields(PipelineSpec, ("spec",)) if path not in reached and not re.match(ELSEWHERE, path)]
    without_choice = ["spec.model.bundled", "spec.codec.engine", "spec.connector.managed"]
    assert left == without_choice, "give it a value in one of the documents in tests/unit/golden"


def fields(struct, path):
    """Yields the path of every field in the schema."""
    for field in msgspec.structs.fields(struct):
        here = (*path, field.encode_name)
        yield dotted(here)
        for nested in structs_in(field.type):
            yield from fields(nested, here)


def structs_in(annotation):
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return [annotation]
    return [struct for part in getattr(annotation, "__args__", ()) for struct in structs_in(part)]


def assert_one_generation(plan, pipeline):
    """All stages have the plan's generation."""
    configs = [
        msgspec.json.decode(text)
        for component, template in templates(plan, pipeline).items()
        if component in STAGES
        for name, text in template["metadata"]["annotations"].items()
        if name in ("syrinx.dev/config", "syrinx.dev/codec-config")
    ]
    assert [config["generation"] for config in configs] == [plan.generation] * 3
    assert [config["pipeline"] for config in configs] == [pipeline.name] * 3
