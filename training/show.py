"""Writes samples of a checkpoint: audio files of a few held-out sentences, and their spectrograms."""

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
from .speak import Case, Speaker, Speech, Utterance, case_utterances

SHOWN = (
    Case(voice="us", streaming=False, sentences="templates"),
    Case(voice="us_f", streaming=False, sentences="natural"),
    Case(voice="us_m", streaming=True, sentences="natural"),
    Case(voice="gb", streaming=False, sentences="numbers"),
    Case(voice="us", streaming=False, sentences="german"),
)
"""The first sentence of each is shown, if the checkpoint has its language."""

_WINDOW, _HOP = 1_024, 256
_MIN_DB, _MAX_DB = -95, -35
"""The range of the colors."""
_INCHES_PER_SECOND, _INCHES_HIGH = 2.5, 2.0


def show(speaker: Speaker, directory: Path) -> None:
    """Writes a FLAC file for each case, and `spectrograms.png`."""
    directory.mkdir(parents=True, exist_ok=True)
    shown = [case for case in SHOWN if corpus.HELD_OUT[case.sentences] in speaker.languages]
    utterances = [case_utterances(case, corpus.held_out(case.sentences))[0] for case in shown]
    speech = speaker.speak(utterances)
    for case, each in zip(shown, speech, strict=True):
        soundfile.write(directory / f"{case.name}.flac", np.frombuffer(each.pcm, "<i2"), FAMILY.sample_rate, "PCM_16")
    _draw(utterances, speech).savefig(directory / "spectrograms.png", dpi=80)


def _draw(utterances: Sequence[Utterance], speech: Sequence[Speech]) -> Figure:
    """Returns a figure with one spectrogram per row, all on the same time scale."""
    matplotlib.use("Agg")
    audio = [np.frombuffer(each.pcm, "<i2") / 32768 for each in speech]
    seconds = max(map(len, audio)) / FAMILY.sample_rate
    figure = Figure(figsize=(1 + _INCHES_PER_SECOND * seconds, _INCHES_HIGH * len(speech)), layout="constrained")
    axes = figure.subplots(len(speech), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for row, utterance, samples in zip(axes, utterances, audio, strict=True):
        _draw_spectrogram(row, utterance, samples)
    axes[-1].set(xlabel="s", xlim=(0, seconds))
    return figure


def _draw_spectrogram(axes: Axes, utterance: Utterance, samples: np.ndarray) -> None:
    padded = np.pad(samples, (0, max(0, _WINDOW - len(samples))))
    # Noise avoids the logarithm of digital silence.
    noise = np.random.default_rng(0).normal(0, 1e-6, len(padded))
    axes.specgram(
        padded + noise, NFFT=_WINDOW, Fs=FAMILY.sample_rate, noverlap=_WINDOW - _HOP, vmin=_MIN_DB, vmax=_MAX_DB
    )
    text = "streaming text" if utterance.streaming else "whole text"
    axes.set_title(f"{utterance.voice}, {text}: {utterance.sentence.text}", loc="left", fontsize="medium")
    axes.set(ylabel="Hz")
