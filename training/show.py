"""Writes samples of a checkpoint: audio files of a few held-out sentences, and their spectrograms."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
import soundfile
from matplotlib.figure import Figure

from syrinx_stages.contract.family import FAMILY

from . import corpus
from .speak import Case, Speaker, case_utterances

SHOWN = (
    Case("us", False, "templates"),
    Case("us_f", False, "natural"),
    Case("us_m", True, "natural"),
    Case("gb", False, "numbers"),
    Case("us", False, "german"),
)
"""The first sentence of each is shown, if the checkpoint has its language."""

_WINDOW, _HOP = 1_024, 256
_MIN_DB, _MAX_DB = -95, -35
"""The range of the colors."""
_INCHES_PER_SECOND, _INCHES_HIGH = 2.5, 2.0


def show(speaker: Speaker, directory: Path) -> None:
    """Writes a FLAC file for each case, and `spectrograms.png`, all on the same time scale."""
    directory.mkdir(parents=True, exist_ok=True)
    shown = [case for case in SHOWN if corpus.HELD_OUT[case.sentences] in speaker.languages]
    spoken = speaker.speak([case_utterances(case, corpus.held_out(case.sentences))[0] for case in shown])
    matplotlib.use("Agg")
    seconds = max(len(each.pcm) for each in spoken) / 2 / FAMILY.sample_rate
    figure = Figure(figsize=(1 + _INCHES_PER_SECOND * seconds, _INCHES_HIGH * len(spoken)), layout="constrained")
    axes = figure.subplots(len(spoken), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for row, case, each in zip(axes, shown, spoken, strict=True):
        pcm = np.frombuffer(each.pcm, "<i2")
        soundfile.write(directory / f"{case.name}.flac", pcm, FAMILY.sample_rate, "PCM_16")
        samples = np.pad(pcm / 32768, (0, max(0, _WINDOW - len(pcm))))
        # Noise avoids the logarithm of digital silence.
        samples += np.random.default_rng(0).normal(0, 1e-6, len(samples))
        overlap = _WINDOW - _HOP
        row.specgram(samples, NFFT=_WINDOW, Fs=FAMILY.sample_rate, noverlap=overlap, vmin=_MIN_DB, vmax=_MAX_DB)
        text = "streaming text" if each.streaming else "whole text"
        row.set_title(f"{each.voice}, {text}: {each.sentence.text}", loc="left", fontsize="medium")
        row.set(ylabel="Hz")
    axes[-1].set(xlabel="s", xlim=(0, seconds))
    figure.savefig(directory / "spectrograms.png", dpi=80)
