"""The README's links exist, and its tables match the recorded data."""

import re
from pathlib import Path

from syrinx_operator.commands.bench.report import Report, describe, load

ROOT = Path(__file__).parents[2]


def test_the_cpu_table_is_generated_from_the_recorded_data() -> None:
    recorded = describe(load(ROOT / "bench" / "results" / "cpu.json", Report)).strip()
    assert (ROOT / "bench" / "results" / "cpu.md").read_text().strip() == recorded


def test_every_file_that_the_readme_links_to_exists() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text())
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]
