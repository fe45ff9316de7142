"""Live settings: partial updates, checked whole, and a generation that never goes back."""

import pytest

from syrinx_stages.contract.settings import CodecSettings, TalkerSettings
from syrinx_stages.runtime.errors import SettingsError
from syrinx_stages.runtime.settings import Live, Update


def test_what_is_left_out_keeps_its_value() -> None:
    live = Live(TalkerSettings(max_num_seqs=4, lead_limit_seconds=3.0), generation=7)
    assert live.apply(Update({"max_num_seqs": 2})) == TalkerSettings(max_num_seqs=2, lead_limit_seconds=3.0)
    assert live.generation == 8


def test_the_operator_sets_the_generation() -> None:
    live = Live(TalkerSettings(), generation=7)
    live.apply(Update({}, generation=12))
    assert live.generation == 12


def test_an_older_generation_is_a_conflict() -> None:
    live = Live(TalkerSettings(max_num_seqs=4), generation=7)
    with pytest.raises(SettingsError, match="generation 6 is older than 7") as error:
        live.apply(Update({"max_num_seqs": 1}, generation=6))
    assert error.value.status == 409
    assert live.current.max_num_seqs == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_num_seqs": 0}, r"max_num_seqs"),
        ({"max_num_seqs": "many"}, r"max_num_seqs"),
        ({"max_num_seqs": 9}, r"max_num_seqs: 9 is more than max_resident \(8\)"),
        ({"max_rows": 1}, r"max_rows"),
        ({"chunk_ramp": []}, r"chunk_ramp"),
        ({"chunk_ramp": [2, 0]}, r"chunk_ramp"),
        ({"capture_pairs": [[1, 2], [1, 2]]}, r"capture_pairs.*twice"),
        ({"capture_pairs": [[9, 2]]}, r"capture_pairs.*max_resident"),
    ],
)
def test_a_wrong_value_is_named_and_changes_nothing(settings: dict[str, object], message: str) -> None:
    live = Live(CodecSettings(), generation=1, max_resident=8)
    with pytest.raises(SettingsError, match=message):
        live.apply(Update(settings))
    assert live.current == CodecSettings()
    assert live.generation == 1
