"""Reference audio for cloned voices: gliding harmonic tones of 6 s, a different one for each seed."""

import base64
import io

import httpx
import numpy as np
import soundfile

from syrinx_stages.contract.family import FAMILY

SECONDS = 6.0
TRANSCRIPT = "The old teacher carried seven green apples before breakfast, and her brother opened a window."
"""What six seconds of speech say; the tones only cost as much as speech."""


KEPT = "kept"
"""Name of the voice that a service keeps."""


def keep_voice(url: str) -> None:
    """Uploads the voice of seed 0 as `KEPT`, in place of an earlier one. Raises `httpx.HTTPError`."""
    httpx.delete(f"{url}/v1/audio/voices/{KEPT}", timeout=60)
    fields = {"name": KEPT, "consent": "of nobody: it is synthetic", "ref_text": TRANSCRIPT}
    files = {"audio_sample": ("voice.ogg", _ogg(0), "audio/ogg")}
    httpx.post(f"{url}/v1/audio/voices", data=fields, files=files, timeout=60).raise_for_status()


def reference(seed: int) -> str:
    """Returns a mono Ogg Vorbis file as a data URI, as a client sends it in `ref_audio`."""
    return f"data:audio/ogg;base64,{base64.b64encode(_ogg(seed)).decode()}"


def _ogg(seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    moments = np.arange(int(FAMILY.sample_rate * SECONDS)) / FAMILY.sample_rate
    phase = 2 * np.pi * (rng.uniform(90, 250) + 40 * np.sin(2 * moments)).cumsum() / FAMILY.sample_rate
    harmonics = sum(rng.uniform(0.1, 1) / n * np.sin(n * phase) for n in range(1, 20))
    wave = 0.25 * harmonics * np.abs(np.sin(5 * moments)) + 0.01 * rng.standard_normal(len(moments))
    file = io.BytesIO()
    soundfile.write(file, wave.clip(-1, 1), FAMILY.sample_rate, format="OGG", subtype="VORBIS")
    return file.getvalue()
