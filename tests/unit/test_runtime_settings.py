"""Tests of live settings: partial updates, validation, the generation and temporary settings."""

import msgspec
import pytest

from syrinx_stages.contract.messages import TaskType
from syrinx_stages.contract.settings import CodecSettings, GatewaySettings, TalkerSettings
from syrinx_stages.runtime.errors import SettingsError
from syrinx_stages.runtime.settings import LiveSettings, SettingsUpdate


def test_omitted_fields_keep_their_values() -> None:
    live = LiveSettings(TalkerSettings(max_num_seqs=4, lead_limit_seconds=3.0), generation=7)
    live.apply(SettingsUpdate({"max_num_seqs": 2}))
    assert live.current == TalkerSettings(max_num_seqs=2, lead_limit_seconds=3.0)
    assert live.generation == 8


def test_an_older_generation_is_a_conflict() -> None:
    live = LiveSettings(TalkerSettings(max_num_seqs=4), generation=7)
    with pytest.raises(SettingsError, match="generation 6 is older than 7") as error:
        live.apply(SettingsUpdate({"max_num_seqs": 1}, generation=6))
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
def test_an_invalid_value_is_refused_by_field_and_changes_nothing(settings: dict[str, object], message: str) -> None:
    live = LiveSettings(CodecSettings(), generation=1, max_resident=8)
    with pytest.raises(SettingsError, match=message):
        live.apply(SettingsUpdate(settings))
    assert live.current == CodecSettings()
    assert live.generation == 1


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


Live = LiveSettings[TalkerSettings]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def live(clock: Clock) -> Live:
    settings = TalkerSettings(max_num_seqs=4, lead_limit_seconds=3.0)
    return LiveSettings(settings, generation=7, max_resident=16, clock=clock)


def apply_temporary(live: Live, rows: int, generation: int | None = None) -> None:
    live.apply(SettingsUpdate({"max_num_seqs": rows}, generation, 60.0))


def test_temporary_settings_expire_unless_they_are_renewed(live: Live, clock: Clock) -> None:
    base = live.current
    for _ in range(3):
        apply_temporary(live, 8)
        clock.now += 40
    assert (live.current.max_num_seqs, live.seconds_left) == (8, 20)
    apply_temporary(live, 8)
    assert live.current == TalkerSettings(max_num_seqs=8, lead_limit_seconds=3.0)
    clock.now += 59.5
    assert (live.current.max_num_seqs, live.seconds_left, live.base) == (8, 0.5, base)
    clock.now += 0.5
    assert (live.current, live.seconds_left) == (base, None)


def test_temporary_settings_are_merged_with_the_base_only(live: Live) -> None:
    apply_temporary(live, 8)
    live.apply(SettingsUpdate({"lead_limit_seconds": 9.0}, seconds=60.0))
    assert live.current == TalkerSettings(max_num_seqs=4, lead_limit_seconds=9.0)


def test_new_base_settings_end_temporary_ones(live: Live) -> None:
    apply_temporary(live, 8)
    live.apply(SettingsUpdate({"lead_limit_seconds": 9.0}, generation=7))
    assert live.current == live.base == TalkerSettings(max_num_seqs=4, lead_limit_seconds=9.0)
    assert live.seconds_left is None


@pytest.mark.parametrize("generation", [6, 8])
def test_temporary_settings_are_those_of_the_base_or_a_conflict(live: Live, generation: int) -> None:
    with pytest.raises(SettingsError, match="is not that of the base, 7") as error:
        apply_temporary(live, 8, generation=generation)
    assert error.value.status == 409
    assert (live.current, live.seconds_left) == (live.base, None)
    for known in (None, 7):
        apply_temporary(live, 8, generation=known)
        assert (live.current.max_num_seqs, live.generation) == (8, 7)


def test_an_invalid_temporary_value_keeps_the_current_temporary_settings(live: Live) -> None:
    apply_temporary(live, 8)
    with pytest.raises(SettingsError, match=r"max_num_seqs: 17 is more than max_resident \(16\)"):
        apply_temporary(live, 17)
    assert (live.current.max_num_seqs, live.seconds_left) == (8, 60)


@pytest.mark.parametrize("seconds", ["0", "-1", "3600.5", "1e400", '"60"', "true"])
def test_the_duration_is_positive_and_at_most_an_hour(seconds: str) -> None:
    with pytest.raises(msgspec.DecodeError, match=r"seconds|out of range"):
        msgspec.json.decode(f'{{"settings": {{}}, "seconds": {seconds}}}', type=SettingsUpdate)


def test_the_arm_of_a_trial_is_a_temporary_setting_that_is_absent_without_one() -> None:
    clock = Clock()
    live = LiveSettings(GatewaySettings(max_queue=7), generation=1, clock=clock)
    unset = {"max_queue": 7, "max_queue_seconds": 2.0, "ttfa_seconds": {}}
    assert msgspec.to_builtins(live.current) == unset, "gateways of earlier versions accept it"
    live.apply(SettingsUpdate({"arm": "t7b"}, seconds=60.0))
    assert (live.current.arm, live.current.max_queue) == ("t7b", 7)
    clock.now += 61
    assert msgspec.to_builtins(live.current) == unset


@pytest.mark.parametrize("settings", [{"arm": "T1"}, {"arm": "a" * 9}, {"arm": None}, {"ttfa_seconds": {"Song": 1.0}}])
def test_labels_of_streams_are_bounded(settings: dict[str, object]) -> None:
    live = LiveSettings(GatewaySettings(), generation=1)
    with pytest.raises(SettingsError, match=next(iter(settings))):
        live.apply(SettingsUpdate(settings, seconds=60.0))


def test_objectives_are_replaced_as_a_whole() -> None:
    live = LiveSettings(GatewaySettings(), generation=1)
    live.apply(SettingsUpdate({"ttfa_seconds": {"CustomVoice": 0.3, "Base": 2}}))
    live.apply(SettingsUpdate({"ttfa_seconds": {"Base": 1}}))
    assert live.current.ttfa_seconds == {TaskType.BASE: 1.0}
