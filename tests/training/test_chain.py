"""The whole run with the smoke preset, from a corpus to a checkpoint, which generates noise."""

import json
import math
import os
import re
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
from syrinx_stages.model.checkpoint import Checkpoint
from training import codec, corpus, show, speak
from training.__main__ import UNFINISHED, main
from training.codec_loss import DecoderLoss
from training.codec_model import Codec
from training.config import SMOKE
from training.crops import Audio
from training.run import Deadline

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


def test_finetuning_changes_only_the_decoder(out: Path) -> None:
    """And it lowers the loss of the same codes."""
    trained, finetuned = (load(SMOKE, out, torch.device("cpu")) for load in (codec.load, codec.load_finetuned))
    assert same(trained.encoder.state_dict(), finetuned.encoder.state_dict())
    before, after = trained.decoder.state_dict(), finetuned.decoder.state_dict()
    changed = {name.partition(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"pre_conv", "pre_transformer", "upsample", "decoder"}
    exported = load_file(out / "checkpoint" / "speech_tokenizer" / "model.safetensors")
    first = "decoder.0.conv.weight"
    assert torch.equal(exported[f"decoder.{first}"], after[first].half())
    audio = tone_audio("some other tones")
    first_loss, last_loss = (mean_loss(each, audio) for each in (trained, finetuned))
    assert last_loss < 0.99 * first_loss


def tone_audio(text: str) -> Audio:
    utterances = [small.tones(text, speaker) for speaker in range(4)]
    starts = np.cumsum([0, *map(len, utterances[:-1])])
    return Audio(torch.from_numpy(np.concatenate(utterances)), torch.from_numpy(starts))


@torch.no_grad()
def mean_loss(trained: Codec, audio: Audio) -> float:
    loss = DecoderLoss(
        SMOKE.codec, trained, audio, codec.encode(trained, audio.samples, audio.frames()), compiled=False
    )
    return float(np.mean([float(loss(step).spectral) for step in range(12)]))


def test_checkpoint_generates_speech(out: Path, tmp_path: Path) -> None:
    speaker = speak.Speaker(str(out / "checkpoint"), torch.device("cpu"), concurrency=3)
    case = speak.Case(voice="gb", streaming=True, sentences="natural")
    utterances = speak.case_utterances(case, [*corpus.held_out("natural")[:2], *corpus.held_out("german")[:2]])
    speech = speaker.speak(utterances)
    assert [each.ended for each in speech] == [True] * 4
    assert all(each.pcm and len(each.pcm) % (2 * 1920) == 0 for each in speech)
    assert [each.pcm for each in speak.Speaker(str(out / "checkpoint"), torch.device("cpu"), 1).speak(utterances)] == [
        each.pcm for each in speech
    ]
    speak.write(tmp_path / "case.npz", utterances, speech)
    back = speak.read(tmp_path / "case.npz")
    assert back.pcm.astype("<i2").tobytes() == b"".join(each.pcm for each in speech)
    assert [*zip(back.texts.tolist(), back.languages.tolist(), strict=True)] == [each.sentence for each in utterances]
    assert back.voice == "gb"


def test_show_writes_audio_and_spectrograms(out: Path) -> None:
    assert run("show", out) == 0
    shown = {path.name: path for path in (out / "shown").iterdir()}
    assert shown.keys() == {f"{case.name}.flac" for case in show.SHOWN} | {"spectrograms.png"}
    sound = soundfile.info(shown["us-whole-templates.flac"])
    assert (sound.samplerate, sound.channels, sound.frames % 1_920) == (24_000, 1, 0) and sound.frames
    height, width, _ = imread(shown["spectrograms.png"]).shape
    assert height > 100 and width > 80


def test_checkpoint_files_have_default_permissions(out: Path) -> None:
    umask = os.umask(0)
    os.umask(umask)
    files = [path for path in (out / "checkpoint").rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o666 & ~umask}


def test_show_skips_languages_missing_in_the_checkpoint(tmp_path: Path) -> None:
    assert run("show", tmp_path, "--checkpoint", "bundled") == 0
    languages = Checkpoint("bundled").config.talker_config.codec_language_id
    shown = {case.name for case in show.SHOWN if corpus.HELD_OUT[case.sentences] in languages}
    assert {path.stem for path in (tmp_path / "shown").glob("*.flac")} == shown


def names(directory: Path) -> dict[str, int]:
    return {name: tensor.dim() for name, tensor in load_file(directory / "model.safetensors").items()}


def test_tensors_have_the_official_names(out: Path) -> None:
    """The same as in the bundled voice, which the official package loads strictly, except for missing layers."""
    for folder in (".", "speech_tokenizer"):
        ours, official = names(out / "checkpoint" / folder), names(VOICE / folder)
        layers = r"talker.model.layers.[2-9]", r"predictor.model.layers.[1-9]", r"pre_transformer.layers.[1-9]"
        kept = {name: dim for name, dim in official.items() if not any(re.search(pattern, name) for pattern in layers)}
        assert ours == kept


def test_configs_have_the_official_keys(out: Path) -> None:
    """The same as in the bundled voice, at every level."""

    def keys(settings: object) -> object:
        inner = ("talker_config", "code_predictor_config", "decoder_config", "rope_scaling")
        if not isinstance(settings, dict):
            return None
        return {name: keys(value) if name in inner else None for name, value in settings.items()}

    for file in ("config.json", "speech_tokenizer/config.json", "tokenizer_config.json"):
        ours, official = (json.loads((root / file).read_text()) for root in (out / "checkpoint", VOICE))
        assert keys(ours) == keys(official), file


def test_weights_are_float16_and_small(out: Path) -> None:
    for file in (out / "checkpoint").rglob("*.safetensors"):
        assert {tensor.dtype for tensor in load_file(file).values()} == {torch.float16}
    checkpoint = Checkpoint(str(out / "checkpoint"))
    assert checkpoint.config.talker_config.speakers.keys() == {"us", "us_f", "us_m", "gb"}


def test_codes_are_kept_and_audio_is_deleted(out: Path) -> None:
    assert sorted(path.name for path in out.glob("codes-*")) == ["codes-00.npz", "codes-01.npz"]
    assert not list((out / "audio").rglob("*.npz"))


def same(one: object, other: object) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return (
        torch.equal(one, other) if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) else one == other
    )


def state(path: Path) -> object:
    return torch.load(path, weights_only=True)


class _StepLimit(Deadline):
    """A deadline that passes after `count` checks."""

    def __init__(self, count: int) -> None:
        super().__init__(math.inf)
        self._count = count

    def remaining(self) -> float:
        self._count -= 1
        return float(self._count >= 0)


def test_resumed_codec_training_gives_the_same_result(tmp_path: Path) -> None:
    audio = tone_audio("some tones in a row")
    config = structs.replace(SMOKE, codec=structs.replace(SMOKE.codec, steps=8, frames=4, decoded_frames=2))
    cpu, no_log = torch.device("cpu"), lambda line: None
    assert codec.train(config, audio, tmp_path / "whole", cpu, Deadline(), no_log)
    assert not codec.train(config, audio, tmp_path / "parts", cpu, _StepLimit(3), no_log)
    assert not codec.train(config, audio, tmp_path / "parts", cpu, _StepLimit(2), no_log)
    assert codec.train(config, audio, tmp_path / "parts", cpu, Deadline(), no_log)
    assert same(state(tmp_path / "whole" / "codec.pt"), state(tmp_path / "parts" / "codec.pt"))


def test_resumed_finetuning_gives_the_same_result(out: Path, tmp_path: Path) -> None:
    audio = tone_audio("some tones in a row")
    config = structs.replace(SMOKE, codec=structs.replace(SMOKE.codec, finetune_steps=6, frames=4, decoded_frames=2))
    cpu, no_log = torch.device("cpu"), lambda line: None
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "codec.pt").write_bytes((out / "codec.pt").read_bytes())
    assert codec.finetune_decoder(config, audio, tmp_path / "whole", cpu, Deadline(), no_log)
    assert not codec.finetune_decoder(config, audio, tmp_path / "parts", cpu, _StepLimit(3), no_log)
    assert not codec.is_finetuned(tmp_path / "parts", None)
    assert codec.finetune_decoder(config, audio, tmp_path / "parts", cpu, Deadline(), no_log)
    done = {steps: codec.is_finetuned(tmp_path / "parts", steps) for steps in (None, 6, 7)}
    assert done == {None: True, 6: True, 7: False}
    assert same(state(tmp_path / "whole" / "decoder.pt"), state(tmp_path / "parts" / "decoder.pt"))


def test_resumed_talker_training_gives_the_same_result(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped within an epoch, and after another round joined."""
    for name in ("corpus.txt", "codec.pt", "codes-00.npz", "codes-01.npz"):
        (tmp_path / name).write_bytes((out / name).read_bytes())
    for steps in (7, 14, 1):
        monkeypatch.setattr("training.run.Deadline", lambda seconds, steps=steps: _StepLimit(steps))
        assert run("talker", tmp_path) == UNFINISHED
    monkeypatch.undo()
    assert run("talker", tmp_path) == 0
    assert same(state(tmp_path / "talker.pt"), state(out / "talker.pt"))


def test_finished_run_is_not_changed(out: Path) -> None:
    before = state(out / "talker.pt")
    assert run("all", out) == 0
    assert same(before, state(out / "talker.pt"))
    assert not list((out / "audio").rglob("*.npz"))
