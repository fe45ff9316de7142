"""Writes addresses of the Internet, and "&", as words. Pure."""

import re

from syrinx_stages.normalization.languages import Words

_TOP_LEVEL = "com|org|net|edu|gov|info|io|ai|dev|app|de|fr|es|it|pt|br|ru|cn|jp|kr|uk|eu|ch"
"""Without those that are English words."""
_LABEL = r"[A-Za-z0-9-]{1,63}"
_HOST = rf"(?:{_LABEL}\.){{1,8}}(?:{_TOP_LEVEL})(?![A-Za-z0-9-])"
_PATH = r"(?::\d+)?(?:/[\w./~%&=?#+:-]*[\w/])?"
_START = r"(?<![A-Za-z0-9@._/-])"
_ADDRESS = re.compile(
    rf"{_START}(?:https?://(?P<url>[\w.:@-]+{_PATH}[\w/])"
    rf"|(?P<mail>[\w.+-]{{1,64}}@(?:{_LABEL}\.){{1,8}}[A-Za-z]{{2,24}})"
    rf"|(?P<site>{_HOST}{_PATH}))",
    re.ASCII,
)
_AMPERSAND = re.compile(r"\s?&\s?")
_MARK = re.compile(r"[^A-Za-z0-9]+")
_WWW = re.compile(r"\bwww\b")


def spoken_addresses(text: str, words: Words) -> str:
    """Returns a text with its addresses and "&" as words. Their numbers stay."""
    if "." in text or "://" in text:
        text = _ADDRESS.sub(lambda found: _address(found["url"] or found["mail"] or found["site"], words), text)
    return _AMPERSAND.sub(f" {words.ampersand} " if words.space else words.ampersand, text) if "&" in text else text


def _address(address: str, words: Words) -> str:
    marks = {".": words.dot, "/": words.slash, "@": words.at, "-": words.dash, "_": words.underscore}

    def mark(found: re.Match[str]) -> str:
        return " ".join(("", *(marks[each] for each in found[0] if each in marks), ""))

    return _WWW.sub("w w w", _MARK.sub(mark, address.rstrip("/"))).strip()
