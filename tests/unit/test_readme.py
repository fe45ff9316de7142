"""What the README says was measured is what the recorded file says."""

import re
from pathlib import Path

from syrinx_operator.commands.bench.report import load, markdown

ROOT = Path(__file__).parents[2]


def test_the_readmes_table_is_the_recorded_one() -> None:
    recorded = markdown(load(ROOT / "bench" / "results" / "cpu.json")).strip()
    assert (ROOT / "bench" / "results" / "cpu.md").read_text().strip() == recorded
    readme = (ROOT / "README.md").read_text()
    begin, end = "<!-- bench/results/cpu.md: begin -->", "<!-- bench/results/cpu.md: end -->"
    assert readme.partition(begin)[2].partition(end)[0].strip() == recorded


def test_every_file_the_readme_links_to_is_there() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text())
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]
