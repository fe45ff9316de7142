"""Readers of Debian's text packages."""

import random
from pathlib import Path

from training.corpus import SOURCES, dictionary


def write_file(root: Path, file: str, text: str) -> None:
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(text, "utf-8")


def test_dictionary_examples_are_whole_sentences(tmp_path: Path) -> None:
    write_file(
        tmp_path,
        "usr/share/trans/de-en",
        "# A comment.\n"
        "Angst {f} (vor etw.) | aus Angst/Furcht vor [psych.] | Keine Angst! | Er traut sich nicht (ins Wasser).\n"
        "Satz {m}; Sprung {m} | „Ich hab’s!“ rief sie.; Er/Sie geht. :: sentence | 'Got it!' she cried.\n",
    )
    assert list(SOURCES["german"]["trans-de-en"](tmp_path)) == [
        "Keine Angst!",
        "Er traut sich nicht.",
        "Ich hab's! rief sie.",
    ]


def test_fortunes_are_read_without_attributions(tmp_path: Path) -> None:
    for name in ("anekdoten", "mathematiker", "regeln", "sprichworte", "sprichwortev", "sprueche"):
        write_file(tmp_path, f"usr/share/games/fortunes/de/{name}", "")
    write_file(tmp_path, "usr/share/games/fortunes/de/zitate", "»Wissen« ist\nMacht.\n\t\t-- Bacon\n%\nNichts.\n")
    assert " ".join(" ".join(SOURCES["german"]["fortunes-de"](tmp_path)).split()) == "Wissen ist Macht. Nichts."


def test_dictionary_filters_words(tmp_path: Path) -> None:
    write_file(tmp_path, "usr/share/dict/ngerman", "Übung\nlaufen\nDAAD\nABC-Buch\nß\n")
    assert sorted(dictionary("german", tmp_path, random.Random(0))) == ["laufen", "Übung"]
    assert dictionary("english", tmp_path, random.Random(0)) == []
