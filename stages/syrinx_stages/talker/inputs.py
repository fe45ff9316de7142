"""What the talker reads before its first frame and beside each frame: as ids, and as embeddings."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from syrinx_stages.model.talker import Talker

NO_CODE = -1
"""The code of an input that is text alone."""


class Prompt(NamedTuple):
    """The inputs of a prompt, and the text tokens for the frames after it."""

    inputs: NDArray[np.int32]
    """[length, 2]: the text token and the code 0, or `NO_CODE`, of each input, whose embeddings are added."""
    texts: Sequence[int]
    """Text tokens whose embeddings are added to those of frames 0, 1, ..."""
    pad: int
    """The text token of all later frames."""
    voice: tuple[int, Tensor] | None = None
    """An input's position, and the speaker embedding [hidden_size] that is added to it, in the talker's dtype."""
    reference: tuple[int, Tensor] | None = None
    """A position, and the reference's codes [frames, 16] whose embeddings are added to the inputs from there on."""

    @property
    def positions(self) -> int:
        """Number of inputs."""
        return len(self.inputs)

    def text(self, frame: int) -> int:
        """Returns the text token whose embedding is added to those of frame `frame`."""
        return self.texts[frame] if frame < len(self.texts) else self.pad


class EmbeddedPrompt(NamedTuple):
    """The embeddings of a `Prompt`."""

    embeds: Tensor
    """[length, hidden_size]."""
    text_rows: Tensor
    """[count, hidden_size]: added to the embeddings of frames 0, 1, ..."""
    pad_row: Tensor
    """[hidden_size]: added to the embeddings of all later frames."""

    def text_row(self, frame: int) -> Tensor:
        """Returns the text row [hidden_size] that is added to the embeddings of frame `frame`."""
        return self.text_rows[frame] if frame < len(self.text_rows) else self.pad_row


def embed(talker: Talker, prompt: Prompt) -> EmbeddedPrompt:
    """Looks up a prompt's embeddings, on the talker's device."""
    texts, codes = torch.from_numpy(prompt.inputs).to(talker.device, torch.int64).unbind(1)
    embeds, has_code = talker.embed_text(texts), codes != NO_CODE
    embeds[has_code] += talker.embed_codec(codes[has_code])
    for start, rows in voice_rows(talker, prompt):
        embeds[start : start + len(rows)] += rows
    beside = embed_tokens(talker, [*prompt.texts, prompt.pad])
    return EmbeddedPrompt(embeds, beside[:-1], beside[-1])


def embed_tokens(talker: Talker, tokens: Sequence[int]) -> Tensor:
    """Looks up text tokens: [count, hidden_size]."""
    return talker.embed_text(torch.tensor(tokens, dtype=torch.int64, device=talker.device))


def voice_rows(talker: Talker, prompt: Prompt) -> Iterator[tuple[int, Tensor]]:
    """Yields positions, and the rows [count, hidden_size] of a reference voice that are added from there on."""
    if prompt.voice is not None:
        start, embedding = prompt.voice
        yield start, embedding[None]
    if prompt.reference is not None:
        start, codes = prompt.reference
        yield start, talker.embed_frame(codes)
