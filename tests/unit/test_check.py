"""`syrinx check` reports all problems with position, field and accepted values."""

import textwrap
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from support.admission import admit
from syrinx_operator.cluster.plan.connector.redis import stage_user
from syrinx_operator.resource.checks.check import InvalidPipeline, check, load_one
from syrinx_operator.resource.generate import custom_resource
from syrinx_operator.resource.resolve import resolve
from syrinx_operator.resource.spec import default_pipeline
from syrinx_operator.resource.stage_config import plan_local

EXAMPLES = Path(__file__).parents[2] / "examples"
HEAD = "apiVersion: syrinx.dev/v1beta1\nkind: TTSPipeline\nmetadata:\n  name: demo\n"


def problems(text):
    data = text if isinstance(text, bytes) else textwrap.dedent(text).encode("utf-8", "surrogatepass")
    return [str(problem) for problem in check("p.yaml", data).problems]


def spec_problems(spec):
    """Returns the problems of a spec that starts in line 6."""
    return problems(HEAD + "spec:\n" + textwrap.indent(textwrap.dedent(spec), "  "))


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.name)
def test_the_examples_are_valid(file):
    checked = check(file.name, file.read_bytes())
    assert checked.problems == [] and checked.pipelines
    documents = [each for each in yaml.safe_load_all(file.read_text()) if each["kind"] == "TTSPipeline"]
    for document in documents:
        wanted = "vllm" if file.name == "vllm.yaml" else "torch"
        assert admit(custom_resource(), document)["spec"]["talker"]["engine"] == wanted


def test_the_example_contains_the_defaults():
    example, default = load_one("pipeline.yaml", (EXAMPLES / "pipeline.yaml").read_bytes()), default_pipeline()
    assert plan_local(resolve(example), "1") == plan_local(resolve(default), "1")
    assert structs.replace(example.spec, talker=default.spec.talker, codec=default.spec.codec) == default.spec


def test_the_example_lists_the_required_redis_permissions():
    rights = stage_user("speech", "x").partition("resetchannels ")[2].strip()
    assert rights in (EXAMPLES / "existing-redis-tls.yaml").read_text()


@pytest.mark.parametrize(
    ("spec", "advice"),
    [
        ("gateway: {referenceHosts: ['http://a']}", "(Hosts from which reference audio may be downloaded"),
        ("gateway: {cors: {allowOrigins: [app.example]}}", "for example https://app.example.org"),
        ("gateway: {trustedProxies: [10.0.0.1]}", "(Address ranges of proxies, for example 10.0.0.0/8"),
        ("gateway: {resources: {requests: {memory: 4GB}}}", "for example cpu: 500m, memory: 1Gi"),
        ("tuning: {prometheus: {url: 'p:9090'}}", "(URL, for example http://prometheus.monitoring:9090"),
        ("gateway: {resources: 1}", "expected the fields requests, limits"),
    ],
)
def test_a_refused_text_is_described_by_its_field(spec, advice):
    """Also as an item of a list, a value of a mapping, or where it may be absent."""
    [problem] = spec_problems(spec)
    assert advice in problem


def test_all_problems_are_reported_in_file_order():
    found = spec_problems(
        """\
        talker:
          maxNumSeqs: 0
          leadLimitSeconds: soon
        codec:
          chunkRamp: [2, 99]
          capturePairs: [{rows: 1}]
        """
    )
    assert found == [
        "p.yaml:7:5: spec.talker.maxNumSeqs: 0 is not accepted; expected an integer from 1 to 1024",
        "p.yaml:8:5: spec.talker.leadLimitSeconds: 'soon' is not accepted; expected a number above 0, at most 3600",
        "p.yaml:10:20: spec.codec.chunkRamp[1]: 99 is not accepted; expected an integer from 1 to 64",
        "p.yaml:11:20: spec.codec.capturePairs[0].frames: missing; expected an integer from 1 to 64",
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("talker: {maxNumSeq: 4}", "spec.talker.maxNumSeq: unknown field; did you mean maxNumSeqs?"),
        ("talker: {max_num_seqs: 4}", "spec.talker.max_num_seqs: unknown field; did you mean maxNumSeqs?"),
        ("talker: {zzz: 4}", "spec.talker.zzz: unknown field; accepted here: engine, vllm, maxNumSeqs, max"),
        ("talker: {maxNumSeqs: true}", "spec.talker.maxNumSeqs: true is not accepted; expected an integer"),
        ("talker: {maxNumSeqs: '4'}", "spec.talker.maxNumSeqs: '4' is not accepted; expected an integer"),
        ("talker: {maxNumSeqs: 4.5}", "spec.talker.maxNumSeqs: 4.5 is not accepted; expected an integer"),
        ("talker: {leadLimitSeconds: .nan}", "nan is not accepted; expected a number above 0"),
        ("talker: {leadLimitSeconds: .inf}", "inf is not accepted; expected a number above 0"),
        ("talker:", "spec.talker: nothing (null) is not accepted; expected the fields engine, vllm, max"),
        ("talker: 7", "spec.talker: 7 is not accepted; expected the fields engine, vllm, max"),
        ("codec: {chunkRamp: []}", "spec.codec.chunkRamp: [] is not accepted; expected a list of 1 to 16 items"),
        ("codec: {chunkRamp: 2}", "spec.codec.chunkRamp: 2 is not accepted; expected a list of 1 to 16 items"),
        ("codec: {capturePairs: [3]}", "spec.codec.capturePairs[0]: 3 is not accepted; expected the fields rows, "),
        ("model: {bundled: 1}", "spec.model.bundled: 1 is not accepted; expected true or false"),
        ("model: {path: 2024-01-01}", "spec.model.path: datetime.date(2024, 1, 1) is not accepted; expected text"),
        ('model: {path: "a\\nb"}', "it contains a control character or a line break"),
        ("gateway: {port: 65536}", "spec.gateway.port: 65536 is not accepted; expected an integer from 0 to 65535"),
        (
            "connector: {url: 'http://h'}",
            "spec.connector.url: 'http://h' is not accepted; expected redis://HOST:PORT/DB",
        ),
        (
            "talker: {maxNumSeqs: 64, maxResident: 32}",
            "spec.talker.maxNumSeqs: 64 rows per step need as many resident requests",
        ),
    ],
)
def test_messages_name_the_field_and_the_accepted_values(line, message):
    (problem,) = spec_problems(line)
    assert message in problem
    assert problem.startswith("p.yaml:6:")


def test_another_kind_is_one_problem():
    (problem,) = problems("kind: Pod\nmetadata: {labels: {}}\n")
    assert problem == "p.yaml:1:1: kind: 'Pod' is not accepted; expected TTSPipeline"


def test_missing_fields_have_the_position_of_the_document():
    found = problems("# a comment\nspec: {}\n")
    assert [problem.split(":")[:4] for problem in found] == [
        ["p.yaml", "2", "1", " apiVersion"],
        ["p.yaml", "2", "1", " kind"],
        ["p.yaml", "2", "1", " metadata"],
    ]


def test_every_document_is_checked():
    checked = check("p.yaml", (HEAD + "---\n" + HEAD.replace("demo", "two") + "---\n---\nkind: 3\n").encode())
    assert [pipeline.name for pipeline in checked.pipelines] == ["demo", "two"]
    assert [problem.position.line for problem in checked.problems] == [12]


def test_duplicate_pipeline_names_are_refused():
    (problem,) = problems(HEAD + "---\n" + HEAD)
    assert problem == "p.yaml:9:3: metadata.name: 'demo' is also the name of an earlier pipeline in this file"


FROM_A_CLUSTER = """\
apiVersion: syrinx.dev/v1beta1
kind: TTSPipeline
metadata:
  name: demo
  namespace: speech
  uid: 7e0c1d2a-0000-4000-8000-000000000000
  creationTimestamp: "2026-01-01T00:00:00Z"
  resourceVersion: "12"
  generation: 3
  annotations:
    kubectl.kubernetes.io/last-applied-configuration: |
      {"apiVersion":"syrinx.dev/v1beta1"}
  managedFields: [{manager: kubectl, operation: Apply}]
  ownerReferences: []
  finalizers: []
  selfLink: /x
spec: {talker: {replicas: 2}}
status: {observedGeneration: 3, conditions: []}
"""


def test_fields_set_by_the_api_server_are_ignored_with_a_notice():
    checked = check("p.yaml", FROM_A_CLUSTER.encode())
    assert checked.problems == []
    assert checked.pipelines[0].spec.talker.replicas == 2
    assert [str(note) for note in checked.ignored][:2] == [
        "p.yaml:6:3: metadata.uid: set by the API server; ignored",
        "p.yaml:7:3: metadata.creationTimestamp: set by the API server; ignored",
    ]
    notices = []
    load_one("p.yaml", FROM_A_CLUSTER.encode(), notices.append)
    assert notices == [
        "set by the API server and ignored: metadata.uid, metadata.creationTimestamp, metadata.resourceVersion, "
        "metadata.generation, metadata.managedFields, metadata.ownerReferences, metadata.finalizers, "
        "metadata.selfLink, status"
    ]


def test_violations_on_kubernetes_only_are_notes():
    checked = check("p.yaml", (HEAD + "spec:\n  gateway:\n    port: 80\n  model: {path: x}\n").encode())
    assert checked.problems == []
    assert len(checked.pipelines) == 1
    assert [str(note) for note in checked.on_kubernetes] == [
        "p.yaml:7:5: spec.gateway.port: on Kubernetes: must be at least 1024: the gateway does not run as root",
        "p.yaml:8:11: spec.model.path: on Kubernetes: a relative path needs `claim` or `volume`, which contains it",
    ]


ON_KUBERNETES = HEAD + "spec:\n  gateway:\n    apiKeys: {secret: {name: keys, key: k}}\n  model: {path: x, claim: y}\n"


def test_what_only_kubernetes_has_is_no_problem_but_cannot_run_here():
    checked = check("p.yaml", ON_KUBERNETES.encode(), inputs=lambda pipeline: [(("spec",), "unusable")])
    assert checked.problems == []
    only = "with `syrinx up`: supported only on Kubernetes"
    notes = [
        f"p.yaml:7:15: spec.gateway.apiKeys.secret: {only}: set spec.gateway.apiKeys.file",
        f"p.yaml:8:20: spec.model.claim: {only}: remove it and set spec.model.path to a local directory",
    ]
    assert [str(note) for note in checked.with_up] == notes
    with pytest.raises(InvalidPipeline) as refused:
        load_one("p.yaml", ON_KUBERNETES.encode())
    assert str(refused.value).splitlines() == notes


@pytest.mark.parametrize(
    ("field", "is_for_kubernetes"),
    [("", False), (", drainSeconds: 9", False), (", env: [{name: A, value: b}]", True)],
)
def test_files_are_looked_for_on_the_machine_of_the_pipeline(field, is_for_kubernetes):
    """A container of Kubernetes has other files."""
    text = HEAD + f"spec:\n  model: {{path: /x}}\n  gateway: {{port: 8001{field}}}\n"
    checked = check("p.yaml", text.encode(), inputs=lambda pipeline: [(("spec", "model", "path"), "unusable")])
    found, others = checked.problems, checked.with_up
    if is_for_kubernetes:
        found, others = others, found
    kind = "with `syrinx up`: " if is_for_kubernetes else ""
    assert ([str(each) for each in found], others) == ([f"p.yaml:6:11: spec.model.path: {kind}unusable"], [])


def test_other_kinds_are_allowed_only_with_a_pipeline():
    other = "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\n"
    checked = check("p.yaml", (HEAD + "---\n" + other).encode())
    assert (len(checked.pipelines), checked.problems) == (1, [])
    assert [str(note) for note in checked.on_kubernetes] == ["p.yaml:7:1: kind: on Kubernetes: Secret; not checked"]
    assert problems(other) == ["p.yaml:1:1: contains no resource; expected a TTSPipeline"]
    assert "expected TTSPipeline" in problems("apiVersion: syrinx.dev/v1beta1\nkind: TTSPipelin\n")[0]


def test_a_file_with_two_pipelines_cannot_be_run():
    with pytest.raises(InvalidPipeline, match="contains 2 pipelines \\(demo, two\\)"):
        load_one("p.yaml", (HEAD + "---\n" + HEAD.replace("demo", "two")).encode())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "p.yaml:1:1: contains no resource; expected a TTSPipeline"),
        ("# nothing\n---\n", "p.yaml:1:1: contains no resource"),
        (HEAD + "spec: 7\n", "p.yaml:5:1: spec: 7 is not accepted; expected the fields"),
        ("just text", "p.yaml:1:1: 'just text' is not accepted; expected the fields apiVersion, kind"),
        ("a: [1, 2", "p.yaml:1:9: not YAML: "),
        ("a: 1\n\tb: 2", "p.yaml:2:1: not YAML: "),
        ("a: 1\nb:\n  c: 2\n  c: 3\n", "p.yaml:4:3: b.c: duplicate field, first in line 3"),
        ("1: a\n", "p.yaml:1:1: a field's name must be text, not 1 (quote it)"),
        ("? [a]\n: b\n", "p.yaml:1:3: a field's name must be text, not a list or a mapping"),
        ("<<: {a: 1}\n", "a field's name must be text"),
        ("a: !!python/object/apply:os.system ['true']\n", "p.yaml:1:4: a: not plain YAML: the tag"),
        ("a: !!python/name:os.system x\n", "p.yaml:1:4: not YAML: could not determine a constructor"),
        ("a: &a [*a]\n", "nested more than 32 deep"),
        ("[" * 5000, "p.yaml:1:1: nested more than 32 deep"),
        ("a: " + "9" * 5000, "p.yaml:1:4: a: '9999999999"),
        (b"a: \xff\n", "p.yaml:1:1: not UTF-8 text"),
        (b"a: 1\nb: \x00\n", "not YAML: "),
        (b"a: " + b"x" * 300_000, "p.yaml:1:1: the file is too large; at most 262,144 bytes are accepted"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_invalid_yaml_is_refused(text, message):
    found = problems(text)
    assert len(found) == 1
    assert message in found[0]


def test_an_alias_bomb_is_refused_without_expansion():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [" + ", ".join([f"*a{n - 1}"] * 10) + "]" for n in range(1, 12)]
    (problem,) = problems("\n".join(lines))
    assert "more than 20,000 values after expansion of aliases" in problem


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_arbitrary_bytes_do_not_raise(data):
    checked = check("p.yaml", data)
    assert checked.problems or checked.pipelines
