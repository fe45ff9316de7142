"""The talker engine of a CPU: eager torch, and a request's codes do not depend on what else is in the batch.

A step draws code 0 of each row, runs the code predictor, and emits the frame; the frame's embeddings are fed at the
beginning of the row's next step, so that a frame leaves as early as it can.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from msgspec import Struct
from torch import Tensor

from syrinx_stages.contract.messages import End, EndReason, SpeechRequest, TaskType
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.config import CODE_GROUPS
from syrinx_stages.model.kv_cache import KVCache
from syrinx_stages.model.prompt import Prompt
from syrinx_stages.talker.engine import Prepared
from syrinx_stages.talker.frame_sampler import FrameSampler
from syrinx_stages.talker.prompter import Prompter


class _Row(Struct):
    """One request's state."""

    request: SpeechRequest
    prompt: Prompt
    max_frames: int
    cache: KVCache
    hidden: Tensor
    """Of the last position that was fed: [H]."""
    seen: Tensor
    """Values of code 0 said so far: bool [vocabulary]."""
    frames: int = 0
    pending: Tensor | None = None
    """The next input, not fed yet: [H]."""


class EagerTalkerEngine:
    """A `TalkerEngine` that computes a step in `launch`."""

    depth = 1
    isolates_rows = True
    prefill_rows = 1

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Raises `CheckpointError` if the checkpoint does not fit."""
        self._talker = talker = checkpoint.load_talker()
        self._prompter = Prompter(checkpoint, talker)
        self._eos = talker.config.codec_eos_token_id
        self._frame_sampler = FrameSampler(talker)
        self._rows: dict[str, _Row] = {}

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Speaks two frames of nothing, so that the first request does not pay for lazy initialisation."""
        request = SpeechRequest(id="", accepted_at=0.0, text="", task_type=TaskType.CUSTOM_VOICE)
        rows = self._talker.embed_text(torch.zeros(8, dtype=torch.int64, device=self._talker.device))
        none = torch.zeros((0, CODE_GROUPS), dtype=torch.int64, device=self._talker.device)
        self.admit([Prepared(request=request, prompt=Prompt(rows, rows[:0], rows[0]), codes=none, max_frames=2)])
        for _ in range(2):
            self.launch([request.id])
        self.release(request.id)

    @torch.inference_mode()
    def prepare(self, request: SpeechRequest, codes: bytes, reference: bytes | None) -> Prepared:
        """Builds a request's prompt. Raises `RequestError` naming the field that this checkpoint cannot serve."""
        prompt, reference_codes = self._prompter.build(request, reference)
        room = self._talker.config.max_position_embeddings - len(prompt.embeds)
        frames = np.frombuffer(codes, "<i2").reshape(-1, CODE_GROUPS).astype(np.int64)
        return Prepared(
            request=request,
            prompt=prompt,
            codes=torch.from_numpy(frames).to(self._talker.device),
            max_frames=min(request.max_frames, room),
            reference_codes=reference_codes,
        )

    @torch.inference_mode()
    def admit(self, prepared: Sequence[Prepared]) -> None:
        """Prefills requests, and replays the frames they already have; a state one had before is thrown away.

        The replay feeds one frame at a time, as the first owner did, so that it ends in the same state to the bit.
        """
        rows = [self._prefill(each) for each in prepared]
        for row in rows:
            self._rows[row.request.id] = row

    def release(self, request_id: str) -> None:
        """Frees a request's state; unknown ids are fine."""
        self._rows.pop(request_id, None)

    @torch.inference_mode()
    def launch(self, ids: Sequence[str]) -> dict[str, bytes | End]:
        """One frame of each request (int16 little-endian), or its end. If it raises, no row has changed."""
        results: dict[str, bytes | End] = {
            request_id: End(EndReason.LENGTH)
            for request_id in ids
            if self._rows[request_id].frames >= self._rows[request_id].max_frames
        }
        ids = [request_id for request_id in ids if request_id not in results]
        if not ids:
            return results
        rows = [self._rows[request_id] for request_id in ids]
        self._feed(rows)
        codes = self._draw(rows)
        speaking = [index for index, code in enumerate(codes[:, 0].tolist()) if code != self._eos]
        if speaking:
            self._append([rows[index] for index in speaking], codes[speaking])
        raw = codes.to(torch.int16).cpu().numpy()
        for index, request_id in enumerate(ids):
            results[request_id] = End(EndReason.STOP)
            if index in speaking:
                results[request_id] = raw[index].tobytes()
        return results

    def read(self, step: dict[str, bytes | End]) -> dict[str, bytes | End]:
        """The step's results: `launch` has made them."""
        return step

    def _prefill(self, prepared: Prepared) -> _Row:
        request, prompt, codes = prepared.request, prepared.prompt, prepared.codes
        cache = self._talker.new_cache()
        seen = torch.zeros(self._talker.config.vocab_size, dtype=torch.bool, device=codes.device)
        seen[codes[:, 0]] = True
        row = _Row(
            request=request,
            prompt=prompt,
            max_frames=prepared.max_frames,
            cache=cache,
            hidden=self._talker.prefill(prompt.embeds, cache),
            seen=seen,
        )
        for frame in codes:
            self._feed([row])
            self._append([row], frame[None])
        return row

    def _feed(self, rows: Sequence[_Row]) -> None:
        """Feeds every row's pending input."""
        waiting = [(row, row.pending) for row in rows if row.pending is not None]
        if not waiting:
            return
        lengths = [row.cache.length for row, _ in waiting]
        try:
            hidden = self._talker.decode(torch.stack([item for _, item in waiting]), [row.cache for row, _ in waiting])
        except BaseException:
            for (row, _), length in zip(waiting, lengths, strict=True):
                row.cache.length = length
            raise
        for (row, _), state in zip(waiting, hidden, strict=True):
            row.hidden, row.pending = state, None

    def _draw(self, rows: Sequence[_Row]) -> Tensor:
        choices = [(row.request.sampling, row.request.seed) for row in rows]
        hidden = torch.stack([row.hidden for row in rows])
        return self._frame_sampler.sample(choices, [row.frames for row in rows], hidden, [row.seen for row in rows])

    def _append(self, rows: Sequence[_Row], codes: Tensor) -> None:
        """Makes frames [B, 16] the rows' pending inputs, each with its next row of text."""
        texts = torch.stack([row.prompt.text_row(row.frames) for row in rows])
        for row, pending, frame in zip(rows, self._talker.embed_frame(codes) + texts, codes, strict=True):
            row.pending = pending
            row.seen[frame[0]] = True
            row.frames += 1
