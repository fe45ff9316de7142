"""The talker's engines beside each other: what counts as a gap, and the table."""

from gpu.engines import GAP, _gaps, rows_of


def test_a_gap_is_when_nothing_runs_for_long_enough() -> None:
    spans = [(0.0, 10.0), (5.0, 50.0), (12.0, 20.0), (50.0 + GAP, 80.0), (80.0 + GAP / 2, 200.0), (300.0, 301.0)]
    assert list(_gaps(spans)) == [GAP, 100.0]


def test_a_line_for_each_engine_and_batch() -> None:
    found = {"frame_ms": 2.049, "first_frame_ms": 3.5, "audio_s_per_s": 35.66}
    idle = found | {"gaps_a_frame": 1.25, "idle_share": 0.031}
    assert rows_of({"torch": {"1": found}, "vllm": {"8": idle}}) == [
        ["torch", "1", "2.05", "3.50", "35.7", "-", "-"],
        ["vllm", "8", "2.05", "3.50", "35.7", "1.2", "3.1%"],
    ]
