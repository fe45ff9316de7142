"""Sound and pictures of a checkpoint: some held-out sentences as audio files, and their spectrograms."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
import soundfile
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from syrinx_stages.contract.family import FAMILY

from . import corpus
from .speak import Case, Said, Speaker, Wanted, wanted

SHOWN = (
    Case(voice="us", streaming=False, sentences="templates"),
    Case(voice="us_f", streaming=False, sentences="natural"),
    Case(voice="us_m", streaming=True, sentences="natural"),
    Case(voice="gb", streaming=False, sentences="numbers"),
    Case(voice="us", streaming=False, sentences="german"),
)
"""Of each the first sentence, if the checkpoint knows its language."""

_WINDOW, _HOP = 1_024, 256
_QUIETEST, _LOUDEST = -95, -35
"""dB: the ends of the colours."""
_INCHES_A_SECOND, _INCHES_HIGH = 2.5, 2.0


def show(speaker: Speaker, directory: Path) -> None:
    """Speaks what is shown: a FLAC file of each, and `spectrograms.png`."""
    directory.mkdir(parents=True, exist_ok=True)
    shown = [case for case in SHOWN if corpus.HELD_OUT[case.sentences] in speaker.languages]
    requests = [wanted(case, corpus.held_out(case.sentences))[0] for case in shown]
    said = speaker.speak(requests)
    for case, each in zip(shown, said, strict=True):
        soundfile.write(directory / f"{case.name}.flac", np.frombuffer(each.pcm, "<i2"), FAMILY.sample_rate, "PCM_16")
    _draw(requests, said).savefig(directory / "spectrograms.png", dpi=80)


def _draw(requests: Sequence[Wanted], said: Sequence[Said]) -> Figure:
    """One spectrogram below the other, all at the same scale of time."""
    matplotlib.use("Agg")
    audio = [np.frombuffer(each.pcm, "<i2") / 32768 for each in said]
    seconds = max(map(len, audio)) / FAMILY.sample_rate
    figure = Figure(figsize=(1 + _INCHES_A_SECOND * seconds, _INCHES_HIGH * len(said)), layout="constrained")
    axes = figure.subplots(len(said), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for one, request, samples in zip(axes, requests, audio, strict=True):
        _draw_one(one, request, samples)
    axes[-1].set(xlabel="s", xlim=(0, seconds))
    return figure


def _draw_one(axes: Axes, request: Wanted, samples: np.ndarray) -> None:
    padded = np.pad(samples, (0, max(0, _WINDOW - len(samples))))
    # Digital silence has no logarithm.
    noise = np.random.default_rng(0).normal(0, 1e-6, len(padded))
    overlap = _WINDOW - _HOP
    axes.specgram(padded + noise, NFFT=_WINDOW, Fs=FAMILY.sample_rate, noverlap=overlap, vmin=_QUIETEST, vmax=_LOUDEST)
    text = "streaming text" if request.streaming else "whole text"
    axes.set_title(f"{request.voice}, {text}: {request.sentence.text}", loc="left", fontsize="medium")
    axes.set(ylabel="Hz")
