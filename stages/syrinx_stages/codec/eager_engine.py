"""The CPU codec engine: eager PyTorch. A stream's samples do not depend on how its frames are grouped into calls."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from syrinx_stages.codec.engine import CaptureCost, Prefill
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.settings import CapturePair
from syrinx_stages.model.codec.decoder import CodecDecoder
from syrinx_stages.model.codec.state import DecoderState
from syrinx_stages.model.layers import pack_weights
from syrinx_stages.runtime.requests.engine import Limits
from syrinx_stages.scheduling.traits import CPU

MAX_FRAMES = 64
"""Frames of all rows that are decoded at once. More are not quicker on a CPU, and each takes 2 MB of activations."""


class EagerCodecEngine:
    """A `CodecEngine` for up to `max_resident` streams. `launch` computes the call; `read` returns its result.

    Captures are free, and change nothing.
    """

    depth = CPU.depth
    isolates_rows = True
    overhead_frames = CPU.overhead_frames
    limits = Limits()

    def __init__(self, decoder: CodecDecoder, max_resident: int) -> None:
        self._decoder = decoder.eval()
        pack_weights(decoder)
        self._device = next(decoder.parameters()).device
        self._codebooks = decoder.config.num_quantizers
        self.codebook_size = decoder.config.codebook_size
        self.prefill: Prefill | None = Prefill(decoder.context_frames, self._prefill, self._save, self._restore)
        self._state = decoder.new_state(max_resident)
        self._free_slots = list(range(max_resident))
        self._slots: dict[str, int] = {}
        self.captured: set[CapturePair] = set()
        self.capture_costs: dict[CapturePair, CaptureCost] = {}

    def capture(self, shape: CapturePair) -> None:
        """Records a shape."""
        self.captured.add(shape)

    def free_shapes(self, shapes: Iterable[CapturePair]) -> None:
        self.captured.difference_update(shapes)

    def warm_up(self) -> None:
        self.open("")
        zeros = np.zeros(self._codebooks, np.int16).tobytes()
        self.launch([""], [[zeros]], (1, 1))
        self.release("")

    def open(self, request_id: str) -> None:
        slot = self._slots.pop(request_id, None)
        slot = self._free_slots.pop() if slot is None else slot
        self._slots[request_id] = slot
        self._state.reset_(torch.tensor([slot], device=self._device))

    def release(self, request_id: str) -> None:
        slot = self._slots.pop(request_id, None)
        if slot is not None:
            self._free_slots.append(slot)

    def launch(self, ids: Sequence[str], codes: Sequence[Sequence[bytes]], shape: CapturePair) -> list[bytes]:
        """Decodes the next frames of each request, without padding, and returns each request's 16-bit PCM.

        The state advances only if the whole call succeeds.
        """
        rows = max(1, MAX_FRAMES // max(map(len, codes)))
        parts = [self._decode(ids[at : at + rows], codes[at : at + rows]) for at in range(0, len(ids), rows)]
        for slots, state, _ in parts:
            self._state.scatter_(slots, state)
        return [pcm for *_, decoded in parts for pcm in decoded]

    @torch.inference_mode()
    def _decode(
        self, ids: Sequence[str], codes: Sequence[Sequence[bytes]]
    ) -> tuple[torch.Tensor, DecoderState, list[bytes]]:
        """Returns the slots of some requests, their state after these frames, and the PCM of each."""
        slots = torch.tensor([self._slots[request_id] for request_id in ids], device=self._device)
        lengths = torch.tensor(list(map(len, codes)), device=self._device)
        pcm, state = self._decoder(self._batch(codes), lengths, self._state.gather(slots))
        samples = pcm.float().mul(32767).round_().clamp_(-32768, 32767).to(torch.int16).cpu().numpy()
        sizes = [len(frames) * FAMILY.samples_per_frame for frames in codes]
        return slots, state, [row[:size].tobytes() for row, size in zip(samples, sizes, strict=True)]

    @torch.inference_mode()
    def _prefill(self, request_id: str, codes: Sequence[bytes]) -> list[bytes]:
        slots = self._slot(request_id)
        lengths = torch.tensor([len(codes)], device=self._device)
        state = self._decoder.prefill(self._batch([codes]), lengths, self._state.gather(slots))
        self._state.scatter_(slots, state)
        return [b""]

    @torch.inference_mode()
    def _save(self, request_id: str) -> DecoderState:
        return self._state.gather(self._slot(request_id))

    @torch.inference_mode()
    def _restore(self, request_id: str, state: DecoderState) -> None:
        self._state.scatter_(self._slot(request_id), state)

    def _slot(self, request_id: str) -> torch.Tensor:
        return torch.tensor([self._slots[request_id]], device=self._device)

    def _batch(self, codes: Sequence[Sequence[bytes]]) -> torch.Tensor:
        """Returns the codes of each row, with zeros behind shorter ones: [rows, frames, codebooks] int64."""
        batch = np.zeros((len(codes), max(map(len, codes)), self._codebooks), np.int64)
        for row, items in enumerate(codes):
            batch[row, : len(items)] = np.frombuffer(b"".join(items), "<i2").reshape(-1, self._codebooks)
        return torch.from_numpy(batch).to(self._device)

    def read(self, call: list[bytes]) -> list[bytes]:
        return call
