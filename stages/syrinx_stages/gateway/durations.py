"""How long the speech of a text is: learned from what the service has spoken, by language and voice. Pure.

A Bayesian linear regression of the number of frames on what a text consists of. Where little is known, of the voice or
of such texts, the predicted range is wide, so that nothing is a runaway only because it is new.
"""

import bisect
import math
import re
import unicodedata

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from syrinx_stages.contract.messages import RunawayGuard, SpeechRequest, TaskType

_PRIOR = (
    # Frames of 80 ms that each adds, and the standard deviation of that.
    (6.0, 5.0),  # a text
    (0.75, 0.2),  # a letter of an ordinary word
    (0.6, 0.4),  # a word
    (4.0, 3.0),  # a pause
    (5.0, 2.5),  # a digit
    (4.0, 3.0),  # a letter that may be spelled, or a symbol
    (3.0, 1.0),  # an ideograph, kana or hangul
)
"""From public recordings of the official voices in ten languages; wide enough for slow and fast ones."""
_SPELLED = np.array([0, 0, 0, 0, 1.0, 1.0, 0])
"""How many digits and symbols a text has: their neighbors decide how they are spoken, all in a text alike."""
_PRIOR_VARIANCES, _PRIOR_COUNTS = np.array([1.2, 4.0]), np.array([20.0, 8.0])
"""Variance of the frames for each expected frame (15 % of a sentence of 50 frames) and for the square of `_SPELLED`; as
many texts weigh as much."""
DEVIATIONS = 5.0
"""Standard deviations above the prediction from which on a clip is a runaway. The tail of durations is heavier than a
normal distribution's."""
LATE_DEVIATIONS = 1.5
"""Standard deviations above the prediction from which on a clip is late."""
MIN_SLACK = 13
"""Frames above the prediction, at least: one second."""
FREE_VOICE = 2.0
"""How much slower than all before a voice may be that a reference or instructions describe."""
_MAX_ERROR = 4.0
"""Standard deviations to which an observation is limited, so that an unusual text does not change the model much."""

_MARKS = '.,;:!?…—–()"“”„«»。，、；：！？'
"""What may surround a word."""
_PAUSE = re.compile(r"[.,;:!?…]+(?!\w)|[—–()]+|[。，、；：！？]+|\n+")
_WORD = re.compile(r"[^\W\d_]+(?:['’\-][^\W\d_]+)*")
_SPOKEN_UNIT = re.compile(r"[\u2e80-\uffff]|[^\s\u2e80-\uffff]+")
"""A word with its marks, or an ideograph."""
_SHORT_REPEATS = re.compile(r"(\w{1,4}?)\1{3}")
_IDEOGRAPHS = 0x2E80
"""The first character of the scripts of Chinese, Japanese and Korean."""
MAX_PHRASE = 8
"""Words of a phrase whose repetition is noticed."""


def text_counts(text: str) -> NDArray[np.float64]:
    """Returns what a text consists of: 1, and the numbers of letters, words, pauses, digits, symbols and ideographs."""
    letters = words = digits = symbols = ideographs = 0
    for token in text.split():
        core = token.strip(_MARKS)
        wide, decimal = sum(ord(each) >= _IDEOGRAPHS for each in core), sum(map(str.isdecimal, core))
        ideographs, digits = ideographs + wide, digits + decimal
        if _WORD.fullmatch(core) and not wide and not (len(core) > 1 and core.isupper()):
            letters, words = letters + len(core), words + 1
        else:
            symbols += len(core) - wide - decimal
    # A closing mark is a pause that nobody hears.
    pauses = len(_PAUSE.findall(text.strip().rstrip(_MARKS)))
    return np.array([1, letters, words, pauses, digits, symbols, ideographs], np.float64)


def repeats_itself(text: str) -> bool:
    """Returns whether a phrase or a part of a word follows itself."""
    plain = unicodedata.normalize("NFKC", text).lower()
    words = re.findall(r"\w+", plain)
    phrases = any(
        words[start : start + count] == words[start + count : start + 2 * count]
        for count in range(1, MAX_PHRASE + 1)
        for start in range(len(words) - 2 * count + 1)
    )
    return phrases or _SHORT_REPEATS.search(plain) is not None


class _Regression:
    """The durations of one voice in one language."""

    def __init__(self) -> None:
        means, deviations = np.array(_PRIOR).T
        self._mean = means
        self._covariance = np.diag(deviations**2)
        self._variances, self._counts = _PRIOR_VARIANCES, _PRIOR_COUNTS

    def predict(self, counts: NDArray[np.float64]) -> tuple[float, float]:
        """Returns the expected number of frames and its standard deviation."""
        noise = float(self._variances @ self._scales(counts))
        return self._frames(counts), math.sqrt(float(counts @ self._covariance @ counts) + noise)

    def learn(self, counts: NDArray[np.float64], frames: int) -> None:
        """Learns from the duration of a text."""
        _, deviation = self.predict(counts)
        scales = self._scales(counts)
        error = frames - float(counts @ self._mean)
        error = math.copysign(min(abs(error), _MAX_ERROR * deviation), error)
        gain = self._covariance @ counts / deviation**2
        self._covariance = self._covariance - np.outer(gain, counts @ self._covariance)
        self._mean = self._mean + gain * error
        # Each cause of an error learns as much of it as it is expected to explain.
        shares = self._variances * scales / deviation**2
        self._counts = self._counts + shares
        self._variances = self._variances * (1 + shares * ((error / deviation) ** 2 - 1) / self._counts)

    def _frames(self, counts: NDArray[np.float64]) -> float:
        return max(1.0, float(counts @ self._mean))

    def _scales(self, counts: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns by how much each of the variances counts for a text."""
        return np.array([self._frames(counts), float(counts @ _SPELLED) ** 2])


class _Voice(Struct, frozen=True):
    language: str
    name: str | None
    """None for any voice that a reference or instructions describe."""


class Durations:
    """What a gateway knows about the durations of speech."""

    def __init__(self) -> None:
        self._voices: dict[_Voice, _Regression] = {}

    def guard(self, request: SpeechRequest) -> RunawayGuard:
        """Returns what the talker needs to detect a runaway."""
        voice = _voice(request)
        expected, deviation = self._regression(voice).predict(text_counts(request.text))
        longest = expected * (FREE_VOICE if voice.name is None else 1.0) + max(DEVIATIONS * deviation, MIN_SLACK)
        return RunawayGuard(
            expected_frames=round(expected),
            late_frames=math.ceil(expected + LATE_DEVIATIONS * deviation),
            max_frames=math.ceil(longest),
            repeats=repeats_itself(request.text),
        )

    def learn(self, request: SpeechRequest, frames: int) -> None:
        """Learns from speech that the model ended by itself after `frames`."""
        self._regression(_voice(request)).learn(text_counts(request.text), frames)

    def spoken_characters(self, request: SpeechRequest, frames: int) -> int:
        """Returns up to which character of its text the first `frames` probably go: the end of a word, or 0."""
        text, regression = request.text, self._regression(_voice(request))
        ends = [unit.end() for unit in _SPOKEN_UNIT.finditer(text)]

        def expected(end: int) -> float:
            return regression.predict(text_counts(text[:end]))[0]

        spoken = bisect.bisect_right(ends, float(frames), key=expected)
        return ends[spoken - 1] if spoken else 0

    def _regression(self, voice: _Voice) -> _Regression:
        return self._voices.setdefault(voice, _Regression())


def _voice(request: SpeechRequest) -> _Voice:
    is_preset = request.task_type is TaskType.CUSTOM_VOICE and request.instructions is None
    return _Voice(request.language, request.voice if is_preset else None)
