"""The talker's engines beside each other: the table."""

from gpu.engines import rows_of


def test_a_line_for_each_engine_and_batch() -> None:
    found = {"frame_ms": 2.049, "first_frame_ms": 3.5, "audio_s_per_s": 35.66}
    idle = found | {"gaps_a_frame": 1.25, "idle_share": 0.031}
    assert rows_of({"torch": {"1": found}, "vllm": {"8": idle}}) == [
        ["torch", "1", "2.05", "3.50", "35.7", "-", "-"],
        ["vllm", "8", "2.05", "3.50", "35.7", "1.2", "3.1%"],
    ]
