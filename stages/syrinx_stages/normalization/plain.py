"""Removes what nobody says from a text: marks of its layout, invisible characters, unusual white space. Pure."""

import re
import unicodedata

_BREAKS = "\n\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_SPACES = "\t\r\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
_LOST = "\N{REPLACEMENT CHARACTER}"
"""Programs write it for what they could not decode."""
_OTHERS = [chr(code) for code in (*range(0x20), 0x7F, *range(0x80, 0xA0)) if chr(code) not in _BREAKS] + [_LOST]
_SAME_LENGTH = str.maketrans(dict.fromkeys([*_SPACES, *_OTHERS], " ") | dict.fromkeys(_BREAKS, "\n"))
_JOINERS = "\u200c\u200d"
"""They change how letters join, and so what a word is."""

_RULE = re.compile(r"^[ ]*(?:[-*_=~#][ ]*){3,}$", re.MULTILINE)
_LINE_MARK = re.compile(r"^[ ]*(?:#{1,6}[ ]+|>[ ]?|[-*+•‣▪◦·–—][ ]+(?:\[[ xX]\][ ]+)?)+", re.MULTILINE)
_NUMBER = re.compile(r"^([ ]*\d{1,3})[.)][ ]+(?=\S)", re.MULTILINE)
_LINK = re.compile(r"!?\[([^\[\]\n]*)\]\([^()\s]*(?:[ ]+\"[^\"\n]*\")?\)")
_EMPHASIS = re.compile(r"(?<![\w*_~`])(\*{1,3}|_{1,3}|~~|`{1,3})(?=\S)(.+?)(?<=\S)\1(?![\w*_~`])")
_CELLS = re.compile(r"[ ]*\|[ ]*")


def with_usual_spaces(text: str) -> str:
    """Returns a text of the same length, whose white space is spaces and line breaks.

    Control characters, and U+FFFD for characters that were lost, are spaces.
    """
    return text.translate(_SAME_LENGTH)


def in_one_line(text: str) -> str:
    """Returns the same with spaces for line breaks, too: a text as a model that speaks sentences reads it."""
    return with_usual_spaces(text).replace("\n", " ")


def begins_item(line: str) -> bool:
    """Returns whether a line begins with the mark of a heading, a quotation or an item of a list."""
    return _LINE_MARK.match(line) is not None or _NUMBER.match(line) is not None


def without_marks(text: str) -> str:
    """Returns a text in one line without marks of its layout (those of Markdown) and invisible characters.

    text: see `with_usual_spaces`. A text without any of them is returned as it is. The number of an item stays.
    """
    text = _RULE.sub("", text)
    text = _NUMBER.sub(r"\1, ", _LINE_MARK.sub("", text))
    text = _EMPHASIS.sub(r"\2", _EMPHASIS.sub(r"\2", _LINK.sub(r"\1", text)))
    if text.count("|") > 1:
        text = _CELLS.sub(", ", text.strip(" |"))
    visible = (each for each in text if each in _JOINERS or unicodedata.category(each) != "Cf")
    return " ".join("".join(visible).split())


def has_words(text: str) -> bool:
    """Returns whether there is anything to say in a text: the addresses of links are not spoken."""
    return any(map(str.isalnum, _LINK.sub(r"\1", text) if "](" in text else text))
