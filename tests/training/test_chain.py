"""The whole run with the smoke preset, from a corpus to a checkpoint, which generates noise."""

import json
import re
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from matplotlib.image import imread
from msgspec import structs
from safetensors.torch import load_file

from support import training as small
from support.talker_recipe import VOICE
from training import checkpoint
from training.cli import UNFINISHED, main
from training.codec import train as codec
from training.codec.loss import Audio, CodecLoss
from training.codec.model import Codec
from training.config import FULL, SMOKE
from training.data import corpus
from training.judging import speak

SMOKE_RUN = ["--preset", "smoke", "--device", "cpu", "--workers", "1"]


def run(step: str, out: Path, *more: str) -> int:
    return main([step, "--out", str(out), *SMOKE_RUN, *more])


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run; its audio is prepared, so espeak-ng is not needed."""
    directory = tmp_path_factory.mktemp("chain") / "run"
    small.prepare_run(directory)
    assert run("all", directory) == 0
    return directory


def logged_values(path: Path, name: str) -> list[float]:
    return [json.loads(line)[name] for line in path.read_text().splitlines()]


def test_losses_decrease(out: Path) -> None:
    spectral = logged_values(out / "codec.jsonl", "spectral")
    assert np.mean(spectral[-6:]) < 0.8 * np.mean(spectral[:4])
    for name in ("code0", "rest"):
        loss = logged_values(out / "talker.jsonl", name)
        assert np.mean(loss[-4:]) < 0.8 * np.mean(loss[:4]), name


def test_finetuning_changes_only_the_decoder(out: Path, tmp_path: Path) -> None:
    """And it lowers the loss of the same codes."""
    shutil.copy(out / "codec.pt", tmp_path)
    trained, finetuned = (codec.load(SMOKE, directory, torch.device("cpu")) for directory in (tmp_path, out))
    assert small.same(trained.encoder.state_dict(), finetuned.encoder.state_dict())
    before, after = trained.decoder.state_dict(), finetuned.decoder.state_dict()
    changed = {name.partition(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"pre_conv", "pre_transformer", "upsample", "decoder"}
    exported = load_file(out / "checkpoint" / "speech_tokenizer" / "model.safetensors")
    first = "decoder.0.conv.weight"
    assert torch.equal(exported[f"decoder.{first}"], after[first].half())
    audio = small.tone_audio(["some other tones"] * 4)
    first_loss, last_loss = (mean_loss(each, audio) for each in (trained, finetuned))
    assert last_loss < 0.99 * first_loss


@torch.no_grad()
def mean_loss(trained: Codec, audio: Audio) -> float:
    loss = CodecLoss(SMOKE, trained, audio, codec.encode(trained, audio.samples, audio.frames()))
    return float(np.mean([float(loss(step).spectral) for step in range(12)]))


def test_checkpoint_generates_speech(out: Path, tmp_path: Path) -> None:
    speaker = speak.Speaker(str(out / "checkpoint"), torch.device("cpu"), concurrency=3)
    case = speak.Case(voice="gb", streaming=True, sentences="natural")
    utterances = speak.case_utterances(case, [*corpus.held_out("natural")[:2], *corpus.held_out("german")[:2]])
    speech = speaker.speak(utterances)
    assert [each.ended for each in speech] == [True] * 4
    assert all(each.pcm and len(each.pcm) % (2 * 1920) == 0 for each in speech)
    assert speak.Speaker(str(out / "checkpoint"), torch.device("cpu"), 1).speak(utterances) == speech
    speak.write(tmp_path / "case.msgpack", speech)
    assert speak.read(tmp_path / "case.msgpack") == speech
    assert [each.sentence for each in speech] == [each.sentence for each in utterances]


def test_show_writes_audio_and_spectrograms(out: Path) -> None:
    assert run("show", out) == 0
    shown = {path.name: path for path in (out / "shown").iterdir()}
    assert shown.keys() == {f"{case.name}.flac" for case in speak.SHOWN} | {"spectrograms.png"}
    sound = soundfile.info(shown["us-whole-templates.flac"])
    assert (sound.samplerate, sound.channels, sound.frames % 1_920) == (24_000, 1, 0) and sound.frames
    height, width, _ = imread(shown["spectrograms.png"]).shape
    assert height > 100 and width > 80


def names(directory: Path) -> dict[str, int]:
    return {name: tensor.dim() for name, tensor in load_file(directory / "model.safetensors").items()}


def test_tensors_have_the_official_names(out: Path) -> None:
    """The same as in the bundled voice, which the official package loads strictly, except for missing layers."""
    for folder in (".", "speech_tokenizer"):
        ours, official = names(out / "checkpoint" / folder), names(VOICE / folder)
        layers = r"talker.model.layers.[2-9]", r"predictor.model.layers.[1-9]", r"pre_transformer.layers.[1-9]"
        kept = {name: dim for name, dim in official.items() if not any(re.search(pattern, name) for pattern in layers)}
        assert ours == kept


def test_full_preset_has_the_bundled_voices_configs() -> None:
    assert checkpoint.model_settings(FULL, VOICE) == json.loads((VOICE / "config.json").read_text())
    codec_settings = json.loads((VOICE / "speech_tokenizer" / "config.json").read_text())
    assert checkpoint.codec_settings(FULL.codec) == codec_settings


def state(path: Path) -> object:
    return torch.load(path, weights_only=True)


def stop_after(steps: int) -> Callable[[], bool]:
    """Returns a time limit that passes after `steps` steps."""
    checks = count()
    return lambda: next(checks) >= steps


@pytest.mark.parametrize("decoder_only", [False, True])
def test_resumed_codec_training_gives_the_same_result(tmp_path: Path, decoder_only: bool) -> None:
    audio = small.tone_audio(["some tones in a row"] * 4)
    settings = structs.replace(SMOKE.codec, steps=8, finetune_steps=6, frames=4, decoded_frames=2)
    config = structs.replace(SMOKE, codec=settings)

    def train(directory: str, steps: int = 99, *, decoder_only: bool = decoder_only) -> bool:
        given = (config, audio, tmp_path / directory, torch.device("cpu"), stop_after(steps), lambda line: None)
        return codec.train(*given, decoder_only=decoder_only)

    if decoder_only:
        assert train("whole", decoder_only=False)
        shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    assert train("whole")
    assert not train("parts", 3)
    assert not codec.is_finetuned(tmp_path / "parts", settings.finetune_steps)
    assert not train("parts", 2)
    assert train("parts")
    state_file = "decoder.pt" if decoder_only else "codec.pt"
    assert small.same(state(tmp_path / "whole" / state_file), state(tmp_path / "parts" / state_file))
    if decoder_only:
        assert {steps: codec.is_finetuned(tmp_path / "parts", steps) for steps in (6, 7)} == {6: True, 7: False}


def test_resumed_talker_training_gives_the_same_result(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped within an epoch, and after another round joined."""
    for name in ("corpus.txt", "codec.pt", "codes-00.npz", "codes-01.npz"):
        shutil.copy(out / name, tmp_path)
    for steps in (7, 14, 1):
        time_is_up = stop_after(steps)
        monkeypatch.setattr("training.cli.Steps.time_is_up", lambda self, time_is_up=time_is_up: time_is_up())
        assert run("talker", tmp_path) == UNFINISHED
    monkeypatch.undo()
    assert run("talker", tmp_path) == 0
    assert small.same(state(tmp_path / "talker.pt"), state(out / "talker.pt"))


def test_finished_run_is_not_changed(out: Path) -> None:
    before = state(out / "talker.pt")
    assert run("all", out) == 0
    assert small.same(before, state(out / "talker.pt"))
    assert not list((out / "audio").rglob("*.npz"))
