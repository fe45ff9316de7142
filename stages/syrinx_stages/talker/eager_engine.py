"""The talker engine for CPUs: eager torch. A request's codes do not depend on the rest of the batch.

A step samples code 0 of each row, runs the code predictor and returns the frame. The frame's embeddings are the input
of the row's next step, so a frame is returned as early as possible.
"""

from collections.abc import Sequence

import numpy as np
import torch
from msgspec import Struct
from torch import Tensor

from syrinx_stages.contract.messages import End, EndReason, SpeechRequest, TaskType
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.config import CODE_GROUPS
from syrinx_stages.model.layers import pack_weights
from syrinx_stages.model.sampling import FrameSampler
from syrinx_stages.model.streamed_text import StreamedText
from syrinx_stages.model.talker import KVCache
from syrinx_stages.runtime.requests.engine import Limits
from syrinx_stages.scheduling.traits import CPU
from syrinx_stages.talker.engine import frame_results
from syrinx_stages.talker.inputs import EmbeddedPrompt, Prompt, embed, embed_tokens
from syrinx_stages.talker.prompt import Prepared, Prompter

REPLAY_FRAMES = 48
"""Frames of a previous owner whose positions are computed at once."""


class _Row(Struct):
    """State of one request."""

    request: SpeechRequest
    prompt: EmbeddedPrompt
    max_frames: int
    cache: KVCache
    hidden: Tensor
    seen: Tensor
    """Values of code 0 sampled so far, for the repetition penalty: [vocabulary] bool."""
    frames: int = 0
    last_frame: Tensor | None = None
    """Embedding of the last frame, [hidden] float, until it is fed to the talker with the text token after it."""


class EagerTalkerEngine:
    """A `TalkerEngine` that computes a step in `launch`."""

    depth = CPU.depth
    isolates_rows = True
    ahead_frames = CPU.ahead_frames
    prompt_rows = CPU.prompt_rows
    prefill_rows = CPU.prefill_rows
    text_lookahead = 0
    limits = Limits()

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Loads the model. Raises CheckpointError if the checkpoint is invalid."""
        self._talker = talker = checkpoint.load_talker()
        pack_weights(talker)
        self._prompter = Prompter(checkpoint, talker)
        self._eos = talker.config.codec_eos_token_id
        self._frame_sampler = FrameSampler(talker)
        self._rows: dict[str, _Row] = {}

    @torch.inference_mode()
    def warm_up(self) -> None:
        # Two frames, so that the first request does not pay for lazy initialization.
        request = SpeechRequest(id="", accepted_at=0.0, text="", task_type=TaskType.CUSTOM_VOICE)
        prompt = Prompt(np.zeros((8, 2), np.int32), (), pad=0)
        none = torch.zeros((0, CODE_GROUPS), dtype=torch.int64, device=self._talker.device)
        self.admit([Prepared(request, prompt, none, max_frames=2, embedded=embed(self._talker, prompt))])
        for _ in range(2):
            self.launch([request.id])
        self.release(request.id)

    @torch.inference_mode()
    def prepare(
        self, request: SpeechRequest, codes: bytes, reference: bytes | None, text: StreamedText | None = None
    ) -> Prepared:
        prepared = self._prompter.prepare(request, codes, reference, text=text)
        prepared.embedded = embed(self._talker, prepared.prompt)
        return prepared

    def open_text(self, request: SpeechRequest) -> StreamedText:
        return self._prompter.open_text(request)

    @torch.inference_mode()
    def extend(self, request_id: str, tokens: Sequence[int], ended: bool) -> None:
        row = self._rows[request_id]
        added = embed_tokens(self._talker, self._prompter.text_tokens(tokens, ended))
        row.prompt = row.prompt._replace(text_rows=torch.cat((row.prompt.text_rows, added)))

    @torch.inference_mode()
    def admit(self, prepared: Sequence[Prepared]) -> None:
        rows = [self._prefill(each) for each in prepared]
        for row in rows:
            self._rows[row.request.id] = row

    def release(self, request_id: str) -> None:
        self._rows.pop(request_id, None)

    @torch.inference_mode()
    def launch(self, ids: Sequence[str]) -> dict[str, bytes | End]:
        results: dict[str, bytes | End] = {
            request_id: End(EndReason.LENGTH)
            for request_id in ids
            if self._rows[request_id].frames >= self._rows[request_id].max_frames
        }
        ids = [request_id for request_id in ids if request_id not in results]
        if not ids:
            return results
        rows = [self._rows[request_id] for request_id in ids]
        self._advance(rows)
        choices = [(row.request.sampling, row.request.seed) for row in rows]
        hidden, seen = torch.stack([row.hidden for row in rows]), [row.seen for row in rows]
        codes = self._frame_sampler.sample(choices, [row.frames for row in rows], hidden, seen)
        sampled = frame_results(codes.to(torch.int16).cpu().numpy(), self._eos)
        continuing = [index for index, result in enumerate(sampled) if not isinstance(result, End)]
        if continuing:
            self._append_frames([rows[index] for index in continuing], codes[continuing])
        results.update(zip(ids, sampled, strict=True))
        return results

    def read(self, step: dict[str, bytes | End]) -> dict[str, bytes | End]:
        return step

    def _prefill(self, prepared: Prepared) -> _Row:
        request, prompt, codes = prepared.request, prepared.embedded, prepared.codes
        assert prompt is not None
        cache = self._talker.new_cache()
        row = _Row(
            request=request,
            prompt=prompt,
            max_frames=prepared.max_frames,
            cache=cache,
            hidden=self._talker.prefill(prompt.embeds, cache),
            seen=torch.zeros(self._talker.config.vocab_size, dtype=torch.bool, device=codes.device),
        )
        if len(codes):
            self._replay(row, codes)
        return row

    def _replay(self, row: _Row, codes: Tensor) -> None:
        """Computes the state after frames [frames, 16] of a previous owner, bit for bit as the previous owner did."""
        *past, row.last_frame = self._talker.embed_frame(codes)
        past = [frame + row.prompt.text_row(index) for index, frame in enumerate(past)]
        for start in range(0, len(past), REPLAY_FRAMES):
            block = past[start : start + REPLAY_FRAMES]
            row.hidden = self._talker.decode(torch.stack(block), [row.cache] * len(block))[-1]
        row.seen[codes[:, 0]] = True
        row.frames = len(codes)

    def _advance(self, rows: Sequence[_Row]) -> None:
        """Advances every row that has a frame by one position."""
        due = [
            (row, row.last_frame + row.prompt.text_row(row.frames - 1)) for row in rows if row.last_frame is not None
        ]
        if not due:
            return
        lengths = [row.cache.length for row, _ in due]
        try:
            hidden = self._talker.decode(torch.stack([item for _, item in due]), [row.cache for row, _ in due])
        except BaseException:
            for (row, _), length in zip(due, lengths, strict=True):
                row.cache.length = length
            raise
        for (row, _), state in zip(due, hidden, strict=True):
            row.hidden, row.last_frame = state, None

    def _append_frames(self, rows: Sequence[_Row], codes: Tensor) -> None:
        """Adds frames [rows, 16] to the rows."""
        for row, embeds, frame in zip(rows, self._talker.embed_frame(codes), codes, strict=True):
            row.last_frame = embeds
            row.seen[frame[0]] = True
            row.frames += 1
