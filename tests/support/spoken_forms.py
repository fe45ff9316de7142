"""Texts in all supported languages, and how they are spoken."""

from pathlib import Path

FORMS = Path(__file__).parents[1] / "fixtures" / "spoken_forms.tsv"
"""Each line: language, text and spoken form."""

SPOKEN: list[tuple[str, ...]] = [tuple(line.split("\t")) for line in FORMS.read_text().splitlines()]
