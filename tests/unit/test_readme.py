"""The README's links exist, and its tables match the recorded data."""

import re
from pathlib import Path

from syrinx_operator.commands.bench.report import Report, describe, load

ROOT = Path(__file__).parents[2]


def test_the_cpu_tables_are_generated_from_the_recorded_data() -> None:
    results = ROOT / "bench" / "results"
    recorded = [describe(load(file, Report)).strip() for file in sorted(results.glob("cpu_*.json"))]
    assert (results / "cpu.md").read_text().strip() == "\n\n".join(recorded)


def test_every_file_that_the_readme_links_to_exists() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text())
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]
