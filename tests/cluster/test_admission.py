"""Admission of pipelines by a real API server."""

from pathlib import Path

import pytest
import yaml

from cluster.client import ApiError
from cluster.installation import EXAMPLES, ROOT

BASE = {"apiVersion": "syrinx.dev/v1beta1", "kind": "TTSPipeline"}


def files(kind):
    found = sorted((ROOT / "tests" / "fixtures" / "resources" / kind).glob("*.yaml"))
    return pytest.mark.parametrize("file", found, ids=lambda file: file.stem)


def verdict(file: Path) -> tuple[str, str]:
    """Returns `accepted`, `refused` or `cluster`, and the field to blame: the first line of the file."""
    head, _, field = file.read_text().splitlines()[0].removeprefix("# ").partition(": ")
    return head, field


@files("valid")
def test_a_valid_resource_is_accepted(installed, file):
    installed.cluster.create(yaml.safe_load(file.read_text()), dry_run=True)


@files("invalid")
def test_an_invalid_resource_is_rejected_by_name(installed, file):
    with pytest.raises(ApiError) as refused:
        installed.cluster.create(yaml.safe_load(file.read_text()), dry_run=True)
    assert verdict(file)[1] in refused.value.message


@files("edits")
def test_an_edit_is_accepted_or_rejected_by_name(installed, file):
    before, after = yaml.safe_load_all(file.read_text())
    name = before["metadata"]["name"]
    installed.cluster.delete("TTSPipeline", name)
    installed.cluster.create(before)
    try:
        expected, field = verdict(file)
        if expected == "accepted":
            installed.cluster.replace(after, dry_run=True)
        else:
            with pytest.raises(ApiError) as refused:
                installed.cluster.replace(after, dry_run=True)
            assert field in refused.value.message
    finally:
        installed.cluster.delete("TTSPipeline", name)


def test_an_empty_spec_gets_defaults(installed):
    accepted = installed.cluster.apply({**BASE, "metadata": {"name": "almost-empty"}, "spec": {}}, dry_run=True)
    assert accepted["spec"]["model"]["bundled"] is True
    assert accepted["spec"]["connector"]["managed"] is True
    assert "maxNumSeqs" not in accepted["spec"]["talker"], "the device decides"
    assert accepted["spec"]["tuning"]["mode"] == "Recommend"


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.name)
def test_every_example_is_accepted(installed, file):
    documents = [each for each in yaml.safe_load_all(file.read_text()) if each]
    for document in (each for each in documents if each["kind"] == "TTSPipeline"):
        installed.cluster.apply(document, dry_run=True)
