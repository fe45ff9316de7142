"""Measures whether speech has its reference's voice, by a speaker verifier that training knows nothing of.

The verifier is resemblyzer's (GE2E, https://arxiv.org/abs/1710.10467), trained on recordings of some thousand people.
Its package contains the weights: `pip install --no-deps resemblyzer==0.1.4`. Only they are used, so that the rest of
the package, which needs librosa and a compiler, does not have to work.
"""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import soxr
import torch
from torch import Tensor, nn

from syrinx_stages.contract.family import FAMILY
from training.data.synthesis import Samples

_RATE, _WINDOW, _HOP, _BANDS = 16_000, 400, 160, 40
_PART, _STEP = 160, 77
"""Spectrogram frames of a part that is embedded, and between the starts of two parts."""
_WIDTH, _LAYERS = 256, 3
_MIN_LEVEL = 10 ** (-30 / 20)
"""Root mean square to which softer speech is amplified."""

Vectors = npt.NDArray[np.float32]
"""[utterances, 256], of length 1."""


class Similarity(msgspec.Struct, frozen=True, kw_only=True):
    """Cosine similarities of speaker embeddings, means over a case's utterances unless noted otherwise."""

    own: float
    """Of the speech and its reference."""
    lowest: float
    """The lowest of these."""
    others: float
    """Of the speech and the references of other speakers."""
    between: float
    """Of references of two different speakers: what cloning has to exceed."""
    espeak: float
    """Of espeak-ng's reading of the sentence by the same speaker, and the reference: the upper limit in practice."""
    identified: float
    """Share of the utterances that are nearest to their own speaker's references among those of all speakers."""


class Verifier:
    """The pretrained verifier, on the CPU."""

    def __init__(self) -> None:
        """Raises ImportError if resemblyzer or transformers is not installed."""
        # Imported late: only voice cloning needs transformers.
        mel_filter_bank: Any = import_module("transformers.audio_utils").mel_filter_bank
        spec = find_spec("resemblyzer")
        if spec is None or not spec.submodule_search_locations:
            raise ImportError("voice cloning is scored with resemblyzer: pip install --no-deps resemblyzer==0.1.4")
        path = Path(spec.submodule_search_locations[0]) / "pretrained.pt"
        state = torch.load(path, map_location="cpu", weights_only=True)["model_state"]
        self._model = nn.ModuleDict(
            {"lstm": nn.LSTM(_BANDS, _WIDTH, _LAYERS, batch_first=True), "linear": nn.Linear(_WIDTH, _WIDTH)}
        )
        self._model.load_state_dict({name: state[name] for name in self._model.state_dict()})
        bank = mel_filter_bank(_WINDOW // 2 + 1, _BANDS, 0.0, _RATE / 2, _RATE, norm="slaney", mel_scale="slaney")
        self._filters = torch.from_numpy(bank.T).float()

    @torch.no_grad()
    def embed(self, audio: Sequence[Samples]) -> Vectors:
        """Returns the embeddings of 16-bit samples at 24 kHz."""
        parts = [self._mel(samples).unfold(0, _PART, _STEP).mT for samples in audio]
        hidden = self._model["lstm"](torch.cat(parts))[1][0][-1]
        each = nn.functional.normalize(self._model["linear"](hidden).relu())
        means = [of_one.mean(0) for of_one in torch.split(each, [len(some) for some in parts])]
        vectors: Vectors = nn.functional.normalize(torch.stack(means)).numpy()
        return vectors

    def _mel(self, samples: Samples) -> Tensor:
        """Returns the power spectrogram [frames, bands], of at least one part."""
        resampled = soxr.resample(samples.astype(np.float32) / 32768, FAMILY.sample_rate, _RATE)
        level = float(np.sqrt(np.mean(np.square(resampled)))) if len(resampled) else 0.0
        wave = torch.from_numpy(resampled * max(1.0, _MIN_LEVEL / max(level, 1e-5)))
        wave = nn.functional.pad(wave, (0, max(0, _PART * _HOP - len(wave))))
        window = torch.hann_window(_WINDOW)
        spectrum = torch.stft(wave, _WINDOW, _HOP, window=window, pad_mode="constant", return_complex=True)
        return (self._filters @ spectrum.abs().square()).T


def compare(speech: Vectors, references: Vectors, readings: Vectors, speakers: Sequence[str]) -> Similarity:
    """Returns the similarities of a case, with at least two speakers; speakers: [utterances]."""
    names, index = np.unique(np.array(speakers), return_inverse=True)
    if len(names) < 2:
        raise ValueError("speakers: similarity needs at least two")
    different = index[:, None] != index[None, :]
    own = (speech * references).sum(1)
    centers = np.stack([references[index == each].mean(0) for each in range(len(names))])
    centers /= np.linalg.norm(centers, axis=1, keepdims=True)
    return Similarity(
        own=_rounded(own.mean()),
        lowest=_rounded(own.min()),
        others=_rounded((speech @ references.T)[different].mean()),
        between=_rounded((references @ references.T)[different].mean()),
        espeak=_rounded((readings * references).sum(1).mean()),
        identified=_rounded(((speech @ centers.T).argmax(1) == index).mean()),
    )


def _rounded(value: np.floating) -> float:
    return round(float(value), 3)
