"""`syrinx check`: every problem at once, with its line, its field and what would be accepted."""

import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syrinx_operator.check import InvalidPipeline, check, load_one
from syrinx_operator.spec import default_pipeline

EXAMPLES = Path(__file__).parents[2] / "examples"
HEAD = "apiVersion: syrinx.dev/v1alpha1\nkind: TTSPipeline\nmetadata:\n  name: demo\n"


def problems(text):
    data = text if isinstance(text, bytes) else textwrap.dedent(text).encode("utf-8", "surrogatepass")
    return [str(problem) for problem in check("p.yaml", data).problems]


def spec_problems(spec):
    """Problems of a resource whose spec starts in line 6."""
    return problems(HEAD + "spec:\n" + textwrap.indent(textwrap.dedent(spec), "  "))


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.name)
def test_the_examples_are_valid(file):
    checked = check(file.name, file.read_bytes())
    assert checked.problems == ()
    assert checked.pipelines


def test_the_example_spells_out_the_defaults():
    assert load_one("pipeline.yaml", (EXAMPLES / "pipeline.yaml").read_bytes()) == default_pipeline()


def test_a_name_alone_is_a_pipeline():
    assert load_one("p.yaml", HEAD.encode()) == default_pipeline()


def test_all_problems_are_told_at_once_in_the_order_of_the_file():
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
        ("talker: {zzz: 4}", "spec.talker.zzz: unknown field; accepted here: maxNumSeqs, maxResident, lead"),
        ("talker: {maxNumSeqs: true}", "spec.talker.maxNumSeqs: true is not accepted; expected an integer"),
        ("talker: {maxNumSeqs: '4'}", "spec.talker.maxNumSeqs: '4' is not accepted; expected an integer"),
        ("talker: {maxNumSeqs: 4.5}", "spec.talker.maxNumSeqs: 4.5 is not accepted; expected an integer"),
        ("talker: {leadLimitSeconds: .nan}", "nan is not accepted; expected a number above 0"),
        ("talker: {leadLimitSeconds: .inf}", "inf is not accepted; expected a number above 0"),
        ("talker:", "spec.talker: nothing (null) is not accepted; expected the fields maxNumSeqs, max"),
        ("talker: 7", "spec.talker: 7 is not accepted; expected the fields maxNumSeqs, max"),
        ("codec: {chunkRamp: []}", "spec.codec.chunkRamp: [] is not accepted; expected a list of 1 to 16 items"),
        ("codec: {chunkRamp: 2}", "spec.codec.chunkRamp: 2 is not accepted; expected a list of 1 to 16 items"),
        ("codec: {capturePairs: [3]}", "spec.codec.capturePairs[0]: 3 is not accepted; expected the fields rows, "),
        ("model: {bundled: 1}", "spec.model.bundled: 1 is not accepted; expected true or false"),
        ("model: {path: 2024-01-01}", "spec.model.path: datetime.date(2024, 1, 1) is not accepted; expected text"),
        ('model: {path: "a\\nb"}', "it holds a control character or a line break"),
        ("gateway: {port: 65536}", "spec.gateway.port: 65536 is not accepted; expected an integer from 0 to 65535"),
        ("connector: {url: 'http://h'}", "spec.connector.url: 'http://h' is not accepted: redis://HOST:PORT/DB"),
        ("talker: {maxNumSeqs: 64}", "spec.talker.maxNumSeqs: 64 rows per step need state for as many requests"),
    ],
)
def test_each_mistake_names_the_field_and_what_would_do(line, message):
    (problem,) = spec_problems(line)
    assert message in problem
    assert problem.startswith("p.yaml:6:")


@pytest.mark.parametrize("name", ["Demo", "-a", "a.b", "a" * 41, "", '"demo\\n"'])
def test_a_name_is_a_dns_label_of_up_to_40(name):
    (problem,) = problems(HEAD.replace("demo", name))
    assert problem.startswith("p.yaml:4:3: metadata.name: ")


def test_another_kind_is_one_problem_not_many():
    (problem,) = problems("kind: Pod\nmetadata: {labels: {}}\n")
    assert problem == "p.yaml:1:1: kind: 'Pod' is not accepted; expected TTSPipeline"


def test_missing_fields_are_told_at_the_document():
    found = problems("# a comment\nspec: {}\n")
    assert [problem.split(":")[:4] for problem in found] == [
        ["p.yaml", "2", "1", " apiVersion"],
        ["p.yaml", "2", "1", " kind"],
        ["p.yaml", "2", "1", " metadata"],
    ]


def test_several_documents_are_checked_each():
    checked = check("p.yaml", (HEAD + "---\n" + HEAD.replace("demo", "two") + "---\n---\nkind: 3\n").encode())
    assert [pipeline.name for pipeline in checked.pipelines] == ["demo", "two"]
    assert [problem.mark.line for problem in checked.problems] == [12]


def test_two_pipelines_of_one_name_are_refused():
    (problem,) = problems(HEAD + "---\n" + HEAD)
    assert problem == "p.yaml:9:3: metadata.name: 'demo' names an earlier pipeline of this file too"


def test_only_one_pipeline_can_be_run():
    with pytest.raises(InvalidPipeline, match="holds 2 pipelines \\(demo, two\\)"):
        load_one("p.yaml", (HEAD + "---\n" + HEAD.replace("demo", "two")).encode())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "p.yaml:1:1: holds no resource; expected a TTSPipeline"),
        ("# nothing\n---\n", "p.yaml:1:1: holds no resource"),
        ("just text", "p.yaml:1:1: 'just text' is not accepted; expected the fields apiVersion, kind"),
        ("a: [1, 2", "p.yaml:1:9: not YAML: "),
        ("a: 1\n\tb: 2", "p.yaml:2:1: not YAML: "),
        ("a: 1\nb:\n  c: 2\n  c: 3\n", "p.yaml:4:3: b.c: stands twice, first in line 3"),
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
def test_what_is_not_acceptable_yaml(text, message):
    found = problems(text)
    assert len(found) == 1
    assert message in found[0]


def test_an_alias_bomb_is_refused_before_it_grows():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [" + ", ".join([f"*a{n - 1}"] * 10) + "]" for n in range(1, 12)]
    (problem,) = problems("\n".join(lines))
    assert "more than 20,000 values, aliases spelled out" in problem


def test_an_alias_is_fine():
    assert not problems(HEAD + "spec:\n  talker: &rows {maxNumSeqs: 4}\n  codec: *rows\n")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_no_input_makes_check_fail_otherwise(data):
    checked = check("p.yaml", data)
    assert checked.problems or checked.pipelines


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda each: (
            st.lists(each, max_size=3)
            | st.dictionaries(
                st.sampled_from(["spec", "talker", "codec", "capturePairs", "chunkRamp", "rows", "model", "path", "x"]),
                each,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_no_resource_makes_check_fail_otherwise(value):
    import yaml

    resource = {"apiVersion": "syrinx.dev/v1alpha1", "kind": "TTSPipeline", "metadata": {"name": "a"}, "spec": value}
    checked = check("p.yaml", yaml.safe_dump(resource).encode())
    assert checked.problems or checked.pipelines
