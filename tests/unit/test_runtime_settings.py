"""Live settings: partial updates, checked whole, a generation that never goes back, and a time limit."""

import msgspec
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


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def live(clock: Clock) -> Live[TalkerSettings]:
    return Live(TalkerSettings(max_num_seqs=4, lead_limit_seconds=3.0), generation=7, max_resident=16, clock=clock)


def limited(live: Live[TalkerSettings], rows: int, seconds: float = 60.0, generation: int | None = None) -> None:
    live.apply(Update({"max_num_seqs": rows}, generation, seconds))


def test_settings_without_a_limit_have_no_end(live: Live[TalkerSettings], clock: Clock) -> None:
    live.apply(Update({"max_num_seqs": 2}))
    clock.now += 1e9
    assert (live.current.max_num_seqs, live.seconds_left) == (2, None)


def test_limited_settings_end_by_themselves(live: Live[TalkerSettings], clock: Clock) -> None:
    base = live.current
    limited(live, 8, seconds=60)
    assert live.current == TalkerSettings(max_num_seqs=8, lead_limit_seconds=3.0)
    clock.now += 59.5
    assert (live.current.max_num_seqs, live.seconds_left, live.base) == (8, 0.5, base)
    clock.now += 0.5
    assert (live.current, live.seconds_left) == (base, None)


def test_limited_settings_last_longer_when_they_are_renewed(live: Live[TalkerSettings], clock: Clock) -> None:
    for _ in range(3):
        limited(live, 8, seconds=60)
        clock.now += 40
    assert (live.current.max_num_seqs, live.seconds_left) == (8, 20)


def test_limited_settings_are_laid_over_the_base_and_not_over_each_other(live: Live[TalkerSettings]) -> None:
    limited(live, 8)
    live.apply(Update({"lead_limit_seconds": 9.0}, seconds=60.0))
    assert live.current == TalkerSettings(max_num_seqs=4, lead_limit_seconds=9.0)


def test_settings_without_a_limit_are_laid_over_the_base_and_end_limited_ones(live: Live[TalkerSettings]) -> None:
    limited(live, 8)
    live.apply(Update({"lead_limit_seconds": 9.0}, generation=7))
    assert live.current == live.base == TalkerSettings(max_num_seqs=4, lead_limit_seconds=9.0)
    assert live.seconds_left is None


@pytest.mark.parametrize("generation", [None, 7])
def test_limited_settings_have_the_generation_of_the_base(live: Live[TalkerSettings], generation: int | None) -> None:
    limited(live, 8, generation=generation)
    assert (live.current.max_num_seqs, live.generation) == (8, 7)


@pytest.mark.parametrize("generation", [6, 8])
def test_limited_settings_for_another_base_are_a_conflict(live: Live[TalkerSettings], generation: int) -> None:
    with pytest.raises(SettingsError, match=f"generation {generation} is not that of the base, 7") as error:
        limited(live, 8, generation=generation)
    assert error.value.status == 409
    assert (live.current, live.seconds_left) == (live.base, None)


def test_a_wrong_limited_value_is_named_and_what_was_limited_stays(live: Live[TalkerSettings]) -> None:
    limited(live, 8)
    with pytest.raises(SettingsError, match=r"max_num_seqs: 17 is more than max_resident \(16\)"):
        limited(live, 17)
    assert (live.current.max_num_seqs, live.seconds_left) == (8, 60)


def test_a_wrong_base_ends_nothing(live: Live[TalkerSettings]) -> None:
    limited(live, 8)
    with pytest.raises(SettingsError, match="max_num_seqs"):
        live.apply(Update({"max_num_seqs": 0}))
    assert (live.current.max_num_seqs, live.generation) == (8, 7)


@pytest.mark.parametrize("seconds", ["0", "-1", "3600.5", "1e400", '"60"', "true"])
def test_a_time_limit_is_more_than_nothing_and_at_most_an_hour(seconds: str) -> None:
    with pytest.raises(msgspec.DecodeError, match=r"seconds|out of range"):
        msgspec.json.decode(f'{{"settings": {{}}, "seconds": {seconds}}}', type=Update)
