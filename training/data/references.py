"""References of the talker's training data for voice cloning: whose voice a sentence has, and which one it continues.

In the layout of the service, a sentence that continues a reference (in-context) is the reference and the sentence as
one: their texts, then their codes. So a pair of utterances is joined to one, and the talker learns both.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from training.config import CloningConfig
from training.data.layout import Utterances

_CHOICES = 4
"""References of each utterance, of which a step draws one."""

Integers = npt.NDArray[np.integer]


def choose_references(speakers: Integers, eligible: npt.NDArray[np.bool_], seed: int) -> npt.NDArray[np.int64]:
    """Returns [utterances, choices] indices of other utterances by the same speaker, among the `eligible` ones.

    An utterance whose speaker has no other eligible one is its own reference. speakers, eligible: [utterances].
    """
    rng = np.random.default_rng(seed)
    pool = np.flatnonzero(eligible)
    pool = pool[np.argsort(speakers[pool], kind="stable")]
    first = np.searchsorted(speakers[pool], speakers, side="left")
    count = np.searchsorted(speakers[pool], speakers, side="right") - first
    own = np.arange(len(speakers))
    # An eligible utterance skips itself: it draws one of the others by the distance from its own place in the pool.
    place = np.zeros(len(speakers), np.int64)
    place[pool] = np.arange(len(pool)) - first[pool]
    others = count - eligible
    drawn = (rng.random((len(speakers), _CHOICES)) * np.maximum(others, 1)[:, None]).astype(np.int64)
    offset = np.where(eligible[:, None], place[:, None] + 1 + drawn, drawn) % np.maximum(count, 1)[:, None]
    chosen = pool[np.minimum(first[:, None] + offset, len(pool) - 1)] if len(pool) else own[:, None] + 0 * drawn
    return np.where(others[:, None] > 0, chosen, own[:, None])


class _Pairs(NamedTuple):
    """[pairs] each: utterances that are joined."""

    first: Tensor
    second: Tensor


def join_utterances(data: Utterances, speakers: Integers, cloning: CloningConfig) -> Utterances:
    """Joins `continued_share` of the utterances in pairs of the same speaker and language, one after the other.

    speakers: [utterances], as the config counts them. Pairs with more than `max_joined_frames` frames are not joined.
    """
    rng = np.random.default_rng((cloning.seed, len(speakers)))
    drawn = rng.permutation(len(speakers))[: int(cloning.continued_share * len(speakers))]
    languages = data.languages.cpu().numpy()
    drawn = drawn[np.lexsort((languages[drawn], speakers[drawn]))]
    first, second = drawn[: len(drawn) // 2 * 2 : 2], drawn[1::2]
    frames = data.frames.cpu().numpy()
    fits = (speakers[first] == speakers[second]) & (languages[first] == languages[second])
    fits &= frames[first] + frames[second] <= cloning.max_joined_frames
    device = data.codes.device
    pairs = _Pairs(*(torch.from_numpy(each[fits]).to(device) for each in (first, second)))
    single = torch.ones(len(speakers), dtype=torch.bool, device=device)
    single[torch.cat(pairs)] = False
    codes, first_frame, frame_count = _append(data.codes, data.first_frame, data.frames, pairs)
    tokens, first_token, token_count = _append(data.tokens, data.first_token, data.token_counts, pairs)
    return data._replace(
        codes=codes,
        first_frame=torch.cat((data.first_frame[single], first_frame)),
        frames=torch.cat((data.frames[single], frame_count)),
        tokens=tokens,
        first_token=torch.cat((data.first_token[single], first_token)),
        token_counts=torch.cat((data.token_counts[single], token_count)),
        **{
            name: torch.cat((column[single], column[pairs.first]))
            for name, column in (
                ("speakers", data.speakers),
                ("languages", data.languages),
                ("references", data.references),
            )
        },
    )


def _append(content: Tensor, first: Tensor, counts: Tensor, pairs: _Pairs) -> tuple[Tensor, Tensor, Tensor]:
    """Appends both parts of each pair to `content`; returns it with the pairs' first rows and counts."""
    both = torch.stack(pairs, 1).flatten()
    starts, sizes = first[both], counts[both]
    ends = sizes.cumsum(0)
    row = torch.arange(int(ends[-1]) if len(ends) else 0, device=content.device)
    part = torch.searchsorted(ends, row, right=True)
    index = starts[part] + row - (ends - sizes)[part]
    joined = sizes.view(-1, 2).sum(1)
    return torch.cat((content, content[index])), len(content) + joined.cumsum(0) - joined, joined
