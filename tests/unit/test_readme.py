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


def test_commands_apply_server_side() -> None:
    """Objects that were applied in both ways have two managers."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), ROOT / "charts/syrinx/templates/NOTES.txt"]
    text = "\n".join(page.read_text() for page in pages)
    commands = re.findall(r"^ *(?:[|] )?kubectl.* apply .*", text, re.MULTILINE)
    assert len(commands) > 5 and not [each for each in commands if "--server-side" not in each]
