"""What `syrinx check` finds in the files that a resource names is what `syrinx up` would refuse: both call this."""

import os
import sys
from pathlib import Path

import pytest
import yaml

from support.talker_recipe import VOICE
from syrinx_operator.commands import cli, pipelines
from syrinx_operator.commands.up import typed_program
from syrinx_operator.resource.checks.check import InvalidPipeline
from syrinx_operator.resource.spec import API_VERSION

KEY = f'{{"name": "alice", "sha256": "{"0" * 64}"}}\n'


@pytest.fixture
def write(tmp_path):
    """Writes a resource beside a checkpoint without some files, and returns its path."""

    def write(spec, without=()):
        model = tmp_path / "model"
        (model / "speech_tokenizer").mkdir(parents=True)
        for file in (*VOICE.glob("*.*"), *VOICE.glob("speech_tokenizer/*")):
            name = file.relative_to(VOICE)
            if str(name) not in without:
                (model / name).symlink_to(file)
        (tmp_path / "keys.jsonl").write_text(KEY)
        (tmp_path / "voice.wav").touch()
        resource = {"apiVersion": API_VERSION, "kind": "TTSPipeline", "metadata": {"name": "mine"}, "spec": spec}
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(resource))
        return str(tmp_path / "mine.yaml")

    return write


ACCEPTED = {
    "model": {"path": "model"},
    "gateway": {"apiKeys": {"file": "keys.jsonl"}, "api": {"voiceAliases": {"narrator": "GB"}}},
}


def test_relative_paths_start_at_the_directory_of_the_file(write, monkeypatch):
    monkeypatch.chdir("/")
    file = write(ACCEPTED)
    assert not pipelines.check_file(file).problems
    assert pipelines.load(file, None).spec.model.path == str(Path(file).parent / "model")


REFUSED = [
    ({"model": {"path": "/models/none"}}, (), "spec.model.path: there is no directory /models/none; name that of a"),
    ({"model": {"path": "mine.yaml"}}, (), "spec.model.path: there is no directory "),
    ({"model": {"path": "."}}, (), "config.json: No such file or directory"),
    ({"model": {"path": "model"}}, ("speech_tokenizer/config.json",), "speech_tokenizer/config.json: No such file"),
    ({"model": {"path": "model"}}, ("model.safetensors",), "checkpoint: it has no model*.safetensors"),
    ({"model": {"path": "model"}}, ("merges.txt",), "checkpoint: it has no *.txt"),
    ({"gateway": {"apiKeys": {"file": "none"}}}, (), "spec.gateway.apiKeys.file: cannot read "),
    ({"gateway": {"apiKeys": {"file": "mine.yaml"}}}, (), "mine.yaml: line 1: JSON is malformed"),
    (
        {"gateway": {"tls": {"certificateFile": "keys.jsonl", "keyFile": "keys.jsonl"}}},
        (),
        "spec.gateway.tls: TLS: ",
    ),
    (
        {"gateway": {"api": {"voiceAliases": {"narrator": "nobody"}}}},
        (),
        "spec.gateway.api.voiceAliases: 'narrator' stands for 'nobody', which is not a voice",
    ),
    (
        {"model": {"path": "model"}, "gateway": {"api": {"voiceAliases": {"us": "gb"}}}},
        (),
        "spec.gateway.api.voiceAliases: 'us' is itself a voice",
    ),
    (
        {"voices": [{"name": "anna", "file": "voice.wav", "consent": "Anna"}]},
        (),
        "spec.voices: they need a Base checkpoint; this one does CustomVoice",
    ),
    ({"voices": [{"name": "anna", "file": "none.wav", "consent": "Anna"}]}, (), "spec.voices[0].file: cannot read "),
]


@pytest.mark.parametrize(("spec", "without", "problem"), REFUSED)
def test_up_refuses_what_check_reports(write, capsys, monkeypatch, spec, without, problem):
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    file = write(spec, without)
    found = [str(each) for each in pipelines.check_file(file).problems]
    assert len(found) == 1 and problem in found[0], found
    with pytest.raises(InvalidPipeline) as refused:
        pipelines.load(file, None)
    assert str(refused.value) == found[0]
    assert cli.main(["check", file]) == 1
    assert "is valid" not in capsys.readouterr().out


def test_the_program_is_named_as_it_can_be_typed(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.chdir(tmp_path)
    for folder in ("bin", ".venv/bin", "my venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
        for name in ("syrinx", "kubectl-syrinx"):
            script = tmp_path / folder / name
            script.touch()
            script.chmod(0o755)
    assert typed_program("syrinx", str(tmp_path / "bin/syrinx")) == "syrinx"
    assert typed_program("syrinx", ".venv/bin/syrinx") == ".venv/bin/syrinx", "another one is on the path"
    assert typed_program("syrinx", "my venv/bin/syrinx") == "'my venv/bin/syrinx'"
    assert typed_program("kubectl syrinx", str(tmp_path / "bin/kubectl-syrinx")) == "kubectl syrinx"
    assert typed_program("kubectl syrinx", ".venv/bin/kubectl-syrinx") == ".venv/bin/kubectl-syrinx"
    os.unlink(tmp_path / "bin/syrinx")
    assert typed_program("syrinx", ".venv/bin/syrinx") == ".venv/bin/syrinx"
    assert typed_program("syrinx", "/x/syrinx_operator/__main__.py") == f"{sys.executable} -m syrinx_operator"
