"""The codec engine of a CPU: eager torch, and a stream's samples do not depend on how its frames came into calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import torch

from syrinx_stages.codec.engine import Cost, split_frames
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.settings import CapturePair
from syrinx_stages.model.codec_decoder import CodecDecoder


class EagerCodecEngine:
    """A `CodecEngine` for up to `max_resident` streams that computes a call in `launch`.

    Nothing has to be made ready for a shape: capturing one notes that calls may be padded to it.
    """

    depth = 1
    isolates_rows = True
    overhead_frames = 0
    costs: Mapping[CapturePair, Cost] = MappingProxyType({})

    def __init__(self, decoder: CodecDecoder, max_resident: int) -> None:
        self._decoder = decoder.eval()
        self._device = next(decoder.parameters()).device
        self._groups = decoder.config.num_quantizers
        self._codebook_size = decoder.config.codebook_size
        # One slot more than requests: padded rows work there.
        self._scratch = max_resident
        self._arena = decoder.new_state(max_resident + 1)
        self._free = list(range(max_resident))
        self._slots: dict[str, int] = {}
        self.captured: set[CapturePair] = set()

    def capture(self, shape: CapturePair) -> None:
        """Calls may be padded to this shape."""
        self.captured.add(shape)

    def forget_shapes(self, shapes: Iterable[CapturePair]) -> None:
        """Calls are no longer padded to these."""
        self.captured.difference_update(shapes)

    def warm_up(self) -> None:
        """Runs the decoder once, so that the first request does not pay for lazy initialisation."""
        self.open("")
        silence = np.zeros(self._groups, np.int16).tobytes()
        self.launch([""], [[silence]], (1, 1))
        self.release("")

    def split(self, codes: bytes) -> list[bytes]:
        """Cuts an entry into frames. Raises ValueError for a torn frame or a code the codebooks do not have."""
        return split_frames(codes, self._groups, self._codebook_size)

    def open(self, request_id: str) -> None:
        """Gives a request a fresh state; one it had before is thrown away."""
        slot = self._slots.pop(request_id, None)
        slot = self._free.pop() if slot is None else slot
        self._slots[request_id] = slot
        self._arena.reset_(torch.tensor([slot], device=self._device))

    def release(self, request_id: str) -> None:
        """Frees a request's slot; unknown ids are fine."""
        slot = self._slots.pop(request_id, None)
        if slot is not None:
            self._free.append(slot)

    @torch.inference_mode()
    def launch(self, ids: Sequence[str], codes: Sequence[Sequence[bytes]], shape: CapturePair) -> list[bytes]:
        """Decodes fresh frames of each request, padded to `shape` (rows, frames); 16-bit PCM per request.

        The state advances only if the whole call succeeds.
        """
        rows, frames = shape
        fresh = [len(items) for items in codes]
        batch = np.zeros((rows, frames, self._groups), np.int64)
        for row, items in enumerate(codes):
            batch[row, : len(items)] = np.frombuffer(b"".join(items), "<i2").reshape(-1, self._groups)
        spare = rows - len(ids)
        used = [self._slots[request_id] for request_id in ids]
        slots = torch.tensor(used + [self._scratch] * spare, device=self._device)
        # Padded rows have as many frames as the others: while all are equal, the decoder copies whole tails.
        lengths = torch.tensor(fresh + fresh[:1] * spare, device=self._device)
        state = self._arena.gather(slots)
        pcm, state = self._decoder(torch.from_numpy(batch).to(self._device), lengths, state)
        self._arena.scatter_(slots, state)
        samples = pcm[: len(ids)].float().mul(32767).round_().clamp_(-32768, 32767).to(torch.int16).cpu().numpy()
        return [row[: count * FAMILY.samples_per_frame].tobytes() for row, count in zip(samples, fresh, strict=True)]

    def read(self, call: list[bytes]) -> list[bytes]:
        """The call's PCM: `launch` has made it."""
        return call
