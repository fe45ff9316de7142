"""The codec engine: PCM for batches of streams of any age. Eager torch; the same code on every device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from syrinx_stages.contract.audio import FRAME_SAMPLES
from syrinx_stages.contract.settings import CapturePair
from syrinx_stages.model.codec_decoder import CodecDecoder

CODE_BYTES = 2


class CodecEngine:
    """Decoder state of up to `max_resident` streams in one arena, and the calls that advance it.

    All methods but `split` are called from one thread.
    """

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

    def warm_up(self) -> None:
        """Runs the decoder once, so that the first request does not pay for lazy initialisation."""
        self.open("")
        silence = np.zeros(self._groups, np.int16).tobytes()
        self.decode([""], [[silence]], (1, 1))
        self.release("")

    def split(self, codes: bytes) -> list[bytes]:
        """Cuts an entry into frames. Raises ValueError for a torn frame or a code the codebooks do not have."""
        size = self._groups * CODE_BYTES
        if not codes or len(codes) % size:
            raise ValueError(f"{len(codes)} bytes are not whole frames of {size}")
        values = np.frombuffer(codes, "<i2")
        if values.min() < 0 or values.max() >= self._codebook_size:
            worst = values[(values < 0) | (values >= self._codebook_size)][0]
            raise ValueError(f"code {worst} is not within 0 to {self._codebook_size - 1}")
        return [codes[at : at + size] for at in range(0, len(codes), size)]

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
    def decode(self, ids: Sequence[str], codes: Sequence[Sequence[bytes]], shape: CapturePair) -> list[bytes]:
        """Decodes the same number of fresh frames of each request, padded to `shape` (rows, frames).

        Returns 16-bit PCM per request. The state advances only if the whole call succeeds.
        """
        rows, frames = shape
        fresh = len(codes[0])
        batch = np.zeros((rows, frames, self._groups), np.int64)
        for row, items in enumerate(codes):
            batch[row, :fresh] = np.frombuffer(b"".join(items), "<i2").reshape(fresh, self._groups)
        used = [self._slots[request_id] for request_id in ids]
        slots = torch.tensor(used + [self._scratch] * (rows - len(ids)), device=self._device)
        lengths = torch.full((rows,), fresh, device=self._device)
        state = self._arena.gather(slots)
        pcm, state = self._decoder(torch.from_numpy(batch).to(self._device), lengths, state)
        self._arena.scatter_(slots, state)
        samples = pcm[: len(ids), : fresh * FRAME_SAMPLES].float().mul(32767).round_().clamp_(-32768, 32767)
        return [row.tobytes() for row in samples.to(torch.int16).cpu().numpy()]
