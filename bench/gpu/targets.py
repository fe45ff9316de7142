"""Targets for one H200 with the 1.7B shape, and the best published results, which are not measured here."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Target(Struct, frozen=True):
    """The target of one figure: `key` of the summary, with `entry` if that is a mapping."""

    what: str
    key: str
    entry: str | None
    comparison: Literal["at most", "at least", "less than"]
    value: float
    unit: str
    """`%` for shares, which are stored as fractions."""
    published: str
    """Value, hardware and source."""

    def format(self, value: float) -> str:
        """Returns a value with its unit."""
        return f"{100 * value:.3g} %" if self.unit == "%" else f"{value:.4g} {self.unit}".strip()

    def is_met(self, measured: float) -> bool:
        """Returns whether a measured value meets the target."""
        if self.comparison == "at least":
            return measured >= self.value
        return measured < self.value if self.comparison == "less than" else measured <= self.value


_STUDY = "H100, sglang-omni r20 vocoder study, 2026-09"
_CODEC = f"1.83 ms for 8 frames of 2 streams, {_STUDY}"
_NARI = "H100, nari-labs/benchmarks 2026-08-20"
_NONE = "not published"


def _frame(batch: str, value: float, published: str) -> Target:
    return Target(f"talker frame, batch {batch}", "talker_frame_ms", batch, "at most", value, "ms", published)


def _codec(batch: str, value: float) -> Target:
    return Target(f"codec, 4 fresh frames, batch {batch}", "codec_4frames_ms", batch, "at most", value, "ms", _CODEC)


def _ttfa(rate: str, value: float, published: str) -> Target:
    return Target(f"TTFA p95, {rate} requests/s", "open_loop_ttfa_p95_ms", rate, "at most", value, "ms", published)


def _underruns(rate: str, published: str) -> Target:
    key = "open_loop_underrun_share"
    return Target(f"underruns, {rate} requests/s", key, rate, "less than", 0.01, "%", published)


TARGETS = (
    _frame("1", 2.5, f"6.06 ms, {_STUDY}"),
    _frame("32", 3.0, f"6.69 ms at batch 12, {_STUDY}"),
    _frame("64", 4.0, f"6.69 ms at batch 12, {_STUDY}"),
    Target(
        *("device idle between two frames, batch 1", "talker_launch_gap_ms", "1", "less than", 0.1, "ms"),
        published=_NONE,
    ),
    _codec("1", 0.8),
    _codec("32", 4.0),
    _ttfa("1", 20, f"26.5 ms, Nari, {_NARI}"),
    _ttfa("20", 35, f"77.2 ms, Nari, {_NARI}; 38.0 ms, Nari measured by sglang-omni, H100"),
    _ttfa("80", 80, "not reached by any service"),
    _underruns("1", f"0-0.8 % over all rates, Nari, {_NARI}"),
    _underruns("20", "0.17-0.77 %, Nari measured by sglang-omni, H100"),
    _underruns("80", "not reached by any service"),
    Target(
        *("closed loop 64", "closed_loop_audio_s_per_s", "64", "at least", 400, "audio s/s"),
        published="111.9, 1.7B Base, H100, vllm-omni #7781",
    ),
    Target("live streams without a gap", "live_streams", None, "at least", 500, "", _NONE),
    Target(
        *("TTFA of 4 clients / of 1", "ttfa_c4_over_c1", None, "at most", 1.3, ""),
        published="1.2 to 11.7, several services",
    ),
)

QUOTED = (
    ("open loop, TTFA p95 ms", "requests/s: 1 / 4 / 10 / 20", "", ""),
    ("Nari", "26.5 / 31.6 / 34.1 / 77.2", "1.7B CustomVoice, H100", "nari-labs/benchmarks 2026-08-20"),
    ("vLLM-Omni", "56.8 / 79.3 / 135.8 / 396.9", "1.7B CustomVoice, H100", "nari-labs/benchmarks 2026-08-20"),
    ("SGLang-Omni", "120.9 / 182.7 / 660.2 / -", "1.7B CustomVoice, H100", "nari-labs/benchmarks 2026-08-20"),
    ("VoxServe", "49.3 / 145.4 / - / -", "1.7B CustomVoice, H100", "nari-labs/benchmarks 2026-08-20"),
    ("M*", "104.0 / 140.0 / 432.9 / -", "1.7B CustomVoice, H100", "nari-labs/benchmarks 2026-08-20"),
    ("Nari", "- / - / - / 38.0", "1.7B CustomVoice, H100", "sglang-omni r20 vocoder study"),
    ("SGLang-Omni", "- / - / - / 46.6-48.7", "1.7B CustomVoice, H100", "sglang-omni #2293, 2026-09-24"),
    ("closed loop, audio s/s", "clients: 8 / 16 / 64", "", ""),
    ("vLLM-Omni", "38.4 / 55.4 / 68.7", "1.7B CustomVoice, 2 x H100", "vllm-omni CI baselines, test_tts.json@1f76b511"),
    ("vLLM-Omni", "- / - / 111.9", "1.7B Base, H100", "vllm-omni #7781, 2026-09-18"),
    ("SGLang-Omni, 2 replicas, MPS", "38.0 at saturation", "1.7B Base, H200", "sglang-omni #1635"),
)
"""Figures published by others, on other machines with other load generators. Rows without a source are headings."""
