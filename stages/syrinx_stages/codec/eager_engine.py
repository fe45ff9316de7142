"""The CPU codec engine: eager PyTorch. A stream's samples do not depend on how its frames are grouped into calls."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from syrinx_stages.codec.engine import CaptureCost, Prefill
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.settings import CapturePair
from syrinx_stages.model.codec_decoder import CodecDecoder
from syrinx_stages.model.codec_state import DecoderState
from syrinx_stages.model.layers import pack_weights
from syrinx_stages.runtime.engine import Limits


class EagerCodecEngine:
    """A `CodecEngine` for up to `max_resident` streams. `launch` computes the call; `read` returns its result.

    Captures are free: a captured shape is only a shape that calls may be padded to.
    """

    depth = 1
    isolates_rows = True
    overhead_frames = 0
    limits = Limits()

    def __init__(self, decoder: CodecDecoder, max_resident: int) -> None:
        self._decoder = decoder.eval()
        pack_weights(decoder)
        self._device = next(decoder.parameters()).device
        self._codebooks = decoder.config.num_quantizers
        self.codebook_size = decoder.config.codebook_size
        self.prefill: Prefill | None = Prefill(decoder.context_frames, self._prefill, self._save, self._restore)
        # Padding rows use one extra slot.
        self._padding_slot = max_resident
        self._state = decoder.new_state(max_resident + 1)
        self._free_slots = list(range(max_resident))
        self._slots: dict[str, int] = {}
        self.captured: set[CapturePair] = set()
        self.capture_costs: dict[CapturePair, CaptureCost] = {}

    def capture(self, shape: CapturePair) -> None:
        """Allows calls to be padded to `shape`."""
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

    @torch.inference_mode()
    def launch(self, ids: Sequence[str], codes: Sequence[Sequence[bytes]], shape: CapturePair) -> list[bytes]:
        """Decodes the next frames of each request, padded to `shape`, and returns each request's 16-bit PCM.

        The state advances only if the whole call succeeds.
        """
        new_frames = [len(items) for items in codes]
        padding = shape[0] - len(ids)
        slots = torch.tensor(
            [self._slots[request_id] for request_id in ids] + [self._padding_slot] * padding, device=self._device
        )
        # Padding rows get the length of the first row: with equal lengths the decoder takes a faster path.
        lengths = torch.tensor(new_frames + new_frames[:1] * padding, device=self._device)
        pcm, state = self._decoder(self._batch(codes, shape), lengths, self._state.gather(slots))
        self._state.scatter_(slots, state)
        samples = pcm[: len(ids)].float().mul(32767).round_().clamp_(-32768, 32767).to(torch.int16).cpu().numpy()
        return [
            row[: count * FAMILY.samples_per_frame].tobytes() for row, count in zip(samples, new_frames, strict=True)
        ]

    @torch.inference_mode()
    def _prefill(self, request_id: str, codes: Sequence[bytes]) -> list[bytes]:
        slots = self._slot(request_id)
        lengths = torch.tensor([len(codes)], device=self._device)
        state = self._decoder.prefill(self._batch([codes], (1, len(codes))), lengths, self._state.gather(slots))
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

    def _batch(self, codes: Sequence[Sequence[bytes]], shape: CapturePair) -> torch.Tensor:
        """Returns the codes of each row, with zeros for padding: [rows, frames, codebooks] int64."""
        batch = np.zeros((*shape, self._codebooks), np.int64)
        for row, items in enumerate(codes):
            batch[row, : len(items)] = np.frombuffer(b"".join(items), "<i2").reshape(-1, self._codebooks)
        return torch.from_numpy(batch).to(self._device)

    def read(self, call: list[bytes]) -> list[bytes]:
        return call
