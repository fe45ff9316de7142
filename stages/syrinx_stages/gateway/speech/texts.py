"""What clients' texts may contain."""

import re

from syrinx_stages.gateway.errors import bad_request
from syrinx_stages.normalization.plain import has_words

MAX_TEXT = 4096
"""Characters of a text that is not divided into segments: a designed voice's, instructions, a transcript."""
MAX_WHOLE_TEXT = 32_768
"""Characters of a text whose audio is held in memory until it is complete: about 40 minutes, 110 MB as PCM."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def check_text(field: str, text: str, limit: int = MAX_TEXT, hint: str = "", advice: str = "send words") -> None:
    """Raises 400 for text that is too long, or has no words. hint: about the limit; advice: what to send instead."""
    if not text or text.isspace():
        raise bad_request(field, "is empty; send the text")
    if not has_words(text):
        raise bad_request(field, f"has no letter or digit; {advice}")
    if len(text) > limit:
        raise bad_request(field, f"has {len(text):,} characters; at most {limit:,} are accepted{hint}")


def check_respelled(text: str) -> None:
    """Raises 400 for a text of which a lexicon has left no words."""
    if not has_words(text):
        raise bad_request("lexicon", "leaves nothing to say of the text; send words")


def without_controls(text: str) -> str:
    """Returns a text that the model reads as it is, without its control characters: line breaks and tabs stay."""
    return _CONTROL.sub(lambda found: " " if found[0].isspace() else "", text)
