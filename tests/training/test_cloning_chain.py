"""The whole run with the preset `base-smoke`, from a corpus to a checkpoint that clones voices, as noise."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from support import training as small
from syrinx_stages.contract.messages import TaskType
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.describe import describe
from training.cli import UNFINISHED, main
from training.config import BASE_SMOKE
from training.data import corpus
from training.judging import clone, speak

ENCODERS = ("speaker", "encoder")
OFFICIAL = Path(__file__).parents[1] / "fixtures" / "official" / "codec"


def run(step: str, out: Path, *more: str) -> int:
    return main([step, "--out", str(out), "--preset", "base-smoke", "--device", "cpu", "--workers", "1", *more])


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run; its audio is prepared, so espeak-ng is not needed."""
    directory = tmp_path_factory.mktemp("cloning") / "run"
    small.prepare_run(directory, BASE_SMOKE)
    assert run("all", directory) == 0
    return directory


def test_checkpoint_does_base(out: Path) -> None:
    description = describe(str(out / "checkpoint"))
    assert (description.task_type, description.voices) == (TaskType.BASE, ())
    assert description.languages == ("auto", "english")
    assert description.embedding_size == BASE_SMOKE.talker.shape["hidden_size"]


@pytest.mark.parametrize("kind", [clone.UNSEEN, clone.CONTINUED])
def test_checkpoint_speaks_with_a_reference(out: Path, kind: str) -> None:
    """Through the talker engine of the service, with the speaker embedding alone and in-context."""
    speaker = speak.Speaker(str(out / "checkpoint"), torch.device("cpu"), concurrency=2)
    case = speak.Case(kind, False, "templates")
    utterances = clone.utterances(case, corpus.held_out("templates")[:2], BASE_SMOKE.synthesis)
    speech = speaker.speak(utterances)
    assert all(each.pcm and len(each.pcm) % (2 * 1920) == 0 for each in speech)
    assert speak.Speaker(str(out / "checkpoint"), torch.device("cpu"), 1).speak(utterances) == speech


def test_reference_encoders_are_the_trained_ones(out: Path) -> None:
    checkpoint = Checkpoint(str(out / "checkpoint"))
    trained = torch.load(out / "speaker.pt", weights_only=True)["encoder"]
    for name, tensor in checkpoint.load_speaker_encoder().state_dict().items():
        torch.testing.assert_close(tensor, trained[name].half().float(), msg=name)
    samples = torch.from_numpy(small.tones("some tones in a row", 1)).float() / 32768
    codes = checkpoint.load_codec_encoder().encode(samples)
    assert codes.shape == (len(samples) // 1920, 16)


def kinds(path: Path, prefix: str) -> set[str]:
    """Returns the names of the tensors under `prefix`, without numbers."""
    return {re.sub(r"\d+", "N", name) for name in load_file(path) if name.startswith(prefix)}


def test_tensors_have_the_official_names(out: Path) -> None:
    """Except for Mimi's transformer, which has no layers."""
    official = kinds(OFFICIAL / "speech_tokenizer" / "model.safetensors", "encoder.")
    without_transformer = {name for name in official if "encoder_transformer" not in name}
    assert kinds(out / "checkpoint" / "speech_tokenizer" / "model.safetensors", "encoder.") == without_transformer
    assert kinds(out / "checkpoint" / "model.safetensors", "speaker_encoder.")
    assert json.loads((out / "checkpoint" / "config.json").read_text())["talker_config"]["spk_id"] == {}


def test_number_of_steps_is_an_option(tmp_path: Path) -> None:
    """Of both encoders. Rounds are encoded once both have trained for that number of steps."""
    small.prepare_run(tmp_path / "run", BASE_SMOKE)
    assert run("encoder", tmp_path / "run", "--encoder-steps", "2") == 0
    assert run("speaker", tmp_path / "run", "--speaker-steps", "3", "--seconds", "0") == UNFINISHED
    with pytest.raises(ValueError, match="run the step `speaker` first"):
        run("codes", tmp_path / "run")
    assert run("speaker", tmp_path / "run", "--speaker-steps", "3") == 0
    assert run("codes", tmp_path / "run") == 0
    steps = {name: torch.load(tmp_path / "run" / f"{name}.pt", weights_only=True)["step"] for name in ENCODERS}
    assert steps == {"speaker": 3, "encoder": 2}


@pytest.mark.parametrize("name", ENCODERS)
def test_steps_of_encoders_are_refused_without_cloning(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"--{name}-steps: the preset smoke does not clone voices"):
        main(["corpus", "--out", str(tmp_path), "--preset", "smoke", f"--{name}-steps", "5"])
