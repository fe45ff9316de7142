"""The files of the gateway's pages: all are packaged, served and used."""

import re
import tomllib
from pathlib import Path

import pytest

from syrinx_stages import gateway

WEB = Path(gateway.__file__).with_name("web")
FILES = sorted(path.name for path in WEB.iterdir())
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def references(name: str) -> set[str]:
    """The files that a page or a module loads."""
    text = (WEB / name).read_text()
    imported = re.findall(r'(?:from |new URL\()"(?:\./)?([\w-]+\.js)"', text)
    return {*imported, *re.findall(r'"assets/([\w.-]+)"', text)}


def loaded(page: str) -> set[str]:
    """Everything that a page loads, directly or not."""
    found, waiting = set(), {page}
    while waiting:
        found |= waiting
        waiting = set().union(*map(references, waiting)) - found
    return found - {page}


def test_every_file_is_packaged():
    package = tomllib.loads(PYPROJECT.read_text())["tool"]["setuptools"]["package-data"]["syrinx_stages"]
    root = WEB.parents[1]
    packaged = {path for pattern in package for path in root.glob(pattern)}
    assert {WEB / name for name in FILES} <= packaged


def test_pages_load_every_file_and_nothing_else():
    assert loaded("docs.html") == {"docs.js", "style.css"}
    assert loaded("playground.html") | loaded("docs.html") == {name for name in FILES if not name.endswith(".html")}


@pytest.mark.parametrize("name", FILES)
def test_no_file_names_another_site(name: str):
    assert not re.search("https?://|wss?://|@import", (WEB / name).read_text())
