"""Tests of the benchmark of what grows with a pipeline, each part small."""

import json

import pytest
from msgspec.structs import replace

from scale import feeds, load, replicas, scrape, takeover
from scale.__main__ import main

pytestmark = pytest.mark.night


@pytest.fixture
def small_growth(monkeypatch):
    """Makes the parts that grow with replicas small."""
    monkeypatch.setattr(replicas, "REPLICAS", (2, 4))
    monkeypatch.setattr(replicas, "REPORTS", 8)
    monkeypatch.setattr(replicas, "WAITING", (0, 200))
    monkeypatch.setattr(replicas, "SUBMISSIONS", 20)
    monkeypatch.setattr(replicas, "READERS", (1, 2))
    monkeypatch.setattr(replicas, "PLAYBACK_REPORTS", 5)


@pytest.fixture
def small(monkeypatch, tmp_path, small_growth):
    """Runs the command with small parts, and returns what it has written."""
    monkeypatch.setattr(feeds, "READERS", (1, 2))
    monkeypatch.setattr(feeds, "STREAMS", 4)
    monkeypatch.setattr(feeds, "STEPS", 5)
    monkeypatch.setattr(takeover, "PENDING", (100, 200))
    monkeypatch.setattr(takeover, "SCANS", 10)
    monkeypatch.setattr(takeover, "RUNS", 1)
    monkeypatch.setattr(scrape, "CLIENTS", 2)
    monkeypatch.setattr(scrape, "SCRAPES", 2)
    size = load.Size(streams=8, talkers=2, codecs=2, gateways=2, seconds=1.0, warm_up_seconds=0.5)
    measure = load.measure
    frames = ("lead_seconds", "chunk_frames")
    monkeypatch.setattr(
        load, "measure", lambda asked: measure(replace(size, **{each: getattr(asked, each) for each in frames}))
    )
    monkeypatch.setattr("sys.argv", ["scale", "--streams", "8", "--runs", "1", "--results", str(tmp_path)])
    main()
    return json.loads((tmp_path / "scale.json").read_text()), (tmp_path / "scale.md").read_text()


def test_everything_is_measured_and_written(small):
    result, table = small
    (run,), (new,) = result["runs"], result["new_runs"]
    # Eight streams of 12.5 frames a second, less what was put or read outside of the second.
    assert 30 < new["entries"] <= 120
    assert 0 < run["entries"] < new["entries"]
    assert 0 < new["hop_p50_ms"] <= new["hop_p99_ms"] == result["hop_p99_ms"]
    assert 0 < run["redis_us_per_stream_second"] == result["redis_us_per_stream_second"]
    assert 0 < new["redis_us_per_stream_second"] == result["redis_us_per_new_stream_second"]
    assert "evalsha" in run["commands_ms"]
    assert {count: len(times) for count, times in result["takeover_scans_us"].items()} == {"100": 1, "200": 1}
    assert result["takeover_scan_us"] == result["takeover_scans_us"]["200"][0] > 0
    assert set(result["feed_entry_us"]) == {"1", "2"} and all(cost > 0 for cost in result["feed_entry_us"].values())
    for figure, counts in (("capacity_report_us", "24"), ("playback_report_us", "12")):
        assert list(result[figure]) == list(counts) and all(cost > 0 for cost in result[figure].values())
    for figure, counts in (("submission_us", {"0", "200"}), ("refusal_us", {"200"})):
        assert set(result[figure]) == counts and all(cost > 0 for cost in result[figure].values())
    assert result["scrape_ms"] > 0 and result["scrape_bytes"] > 1000
    cells = [[cell.strip() for cell in line.split("|")] for line in table.splitlines()]
    assert ["takeover scan, 200 claims pending, \u00b5s", "\u2264 50", str(result["takeover_scan_us"])] in [
        line[1:4] for line in cells
    ]
