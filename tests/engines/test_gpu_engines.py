"""The table of the comparison of the talker's engines."""

from gpu.engines import rows_of


def test_table_has_a_row_for_each_engine_and_batch_size() -> None:
    found = {"frame_ms": 2.049, "first_frame_ms": 3.5, "audio_s_per_s": 35.66}
    assert rows_of({"torch": {"1": found}, "vllm": {"8": found}}) == [
        ["torch", "1", "2.05", "3.50", "35.7"],
        ["vllm", "8", "2.05", "3.50", "35.7"],
    ]
