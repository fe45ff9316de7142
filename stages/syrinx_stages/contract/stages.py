"""The stages of a pipeline."""

from enum import StrEnum
from typing import Final


class Stage(StrEnum):
    """The stages. The values name their packages, and the consumer groups of those that claim requests."""

    GATEWAY = "gateway"
    TALKER = "talker"
    CODEC = "codec"


WORKERS: Final = (Stage.TALKER, Stage.CODEC)
"""The stages that claim requests: each is a consumer group of the request stream, and claims every request once."""
