"""What clients' texts may contain."""

import unicodedata

from syrinx_stages.gateway.errors import bad_request

MAX_TEXT = 4096
"""Characters of a text: OpenAI's limit of `input`, about five minutes of speech."""


def check_text(field: str, text: str) -> None:
    """Raises 400 for text that is empty, too long or has control characters."""
    if not text.strip():
        raise bad_request(field, "is empty; send the text")
    if len(text) > MAX_TEXT:
        raise bad_request(field, f"has {len(text):,} characters; at most {MAX_TEXT:,} are accepted")
    for index, character in enumerate(text):
        if unicodedata.category(character) == "Cc" and character not in "\t\n\r":
            message = f"character {index + 1} is the control character U+{ord(character):04X}; remove it"
            raise bad_request(field, message)
