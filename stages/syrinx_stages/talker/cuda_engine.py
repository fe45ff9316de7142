"""The talker engine of a GPU: CUDA graphs over paged memory; nothing waits for the device but `read`.

A step is two graphs, queued at once: one draws the frame's codes, which leave at once, one feeds them, and the host has
the time to queue the next step meanwhile. A request's device memory is its `Allocation`; one small copy tells a step
the allocations of its rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from msgspec import Struct
from torch import Tensor

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import End, EndReason, SpeechRequest
from syrinx_stages.kernels.metadata import NUM_COLUMNS
from syrinx_stages.kernels.recorder import Work, graph_recorder
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.config import CODE_GROUPS, TalkerConfig
from syrinx_stages.talker.allocation import PAGE_SIZE, Allocation, IndexPool, batch_sizes, bucket_for, num_pages
from syrinx_stages.talker.engine import EngineFull, Prepared
from syrinx_stages.talker.frame import Arena, Frame, Prefill, new_arena
from syrinx_stages.talker.packed import PackedTalker, pack
from syrinx_stages.talker.prompter import Prompter
from syrinx_stages.talker.sampling_params import sampling_params, signed_seed

LENGTHS = (16, 32, 64, 128, 256, 512)
"""Prompts are padded to these; a longer one is fed in parts."""

PREFILL_ROWS = (1, 2, 4, 8)
PREFILL_POSITIONS = 512
"""Of one prefill, padding included."""

SECONDS_RESIDENT = 48
"""Of cache for each resident request, on average: an utterance has some five seconds, a few have a minute."""

MOST_SHARE = 0.6
"""Of the free memory that the cache may take: the codec may be on the same device."""

TEXT_ROWS = 256
"""For each resident request, on average."""

RING = 4
"""Places for steps' results on the host, more than may be unread. Allocation 0 is scratch: padded rows write there."""

MOST_PAGES = 64
"""Of one request: 4,096 positions, five minutes."""


class _Row(Struct, kw_only=True):
    """One resident request."""

    place: Allocation
    max_frames: int
    stopped: bool = False
    """It has drawn its end."""
    full: bool = False
    """It had all frames it may have when a step was launched with it."""


class Step(Struct):
    """A launched step: its rows in order, and where its frames will be."""

    ids: Sequence[str]
    rows: Sequence[_Row]
    full: Sequence[str]
    """Requests that had all their frames before."""
    ring: int
    wait: Work | None


class _Prompt(Struct):
    """A request's inputs that are still to be fed."""

    row: _Row
    embeds: Tensor


class CudaTalkerEngine:
    """A `TalkerEngine` on a CUDA device. `prepare` may run on any thread."""

    depth = 1
    """A frame's codes are there before its step ends: with more, a request that comes would wait for a second step."""
    isolates_rows = False
    prefill_rows = PREFILL_ROWS[-1]

    def __init__(self, checkpoint: Checkpoint, max_resident: int) -> None:
        """`checkpoint` in the type to compute in. Raises `CheckpointError` if it does not fit."""
        self._device = checkpoint.device
        self._recorder, self._preparing = graph_recorder(self._device), graph_recorder(self._device)
        with self._recorder.on_stream():
            talker = checkpoint.load_talker()
            self._talker = talker
            self._config: TalkerConfig = talker.config
            # A reference voice is worth its float32: it is encoded once.
            self._prompter = Prompter(checkpoint.as_float32(), talker, MOST_PAGES * PAGE_SIZE)
            self._weights: PackedTalker = pack(talker)
            self._arena = self._new_arena(max_resident)
        self._slots = IndexPool(max_resident)
        self._pages = IndexPool(self._arena.cache.shape[1] - 1)
        self._text_pages = IndexPool(self._arena.texts.shape[0] // PAGE_SIZE - 1)
        self._sizes = batch_sizes(max_resident)
        self._rows: dict[str, _Row] = {}
        self._ring = 0
        most = max(self._sizes[-1], PREFILL_ROWS[-1]) * (NUM_COLUMNS + MOST_PAGES)
        self._staged = self._recorder.pinned_zeros(2 * RING, most, dtype=torch.int32)
        """What steps and prefills are told, on the way to the device."""
        self._stage = 0
        self._staged_free = [self._recorder.record_event()] * (2 * RING)
        self._frames: dict[int, tuple[Frame, Work, Work]] = {}
        self._prefills: dict[tuple[int, int], tuple[Prefill, Work]] = {}
        self._recorder.record_event()()

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Compiles the kernels and records every graph."""
        shapes = [(rows, length) for length in LENGTHS for rows in PREFILL_ROWS if rows * length <= PREFILL_POSITIONS]
        with self._recorder.on_stream():
            frames = [Frame(self._weights, self._config, self._arena, rows, MOST_PAGES) for rows in self._sizes]
            prefills = [Prefill(self._weights, self._arena, *shape, MOST_PAGES) for shape in shapes]
            works = [work for frame in frames for work in (frame.draw_codes, frame.advance)]
            self._recorder.compile([*works, *(prefill.run for prefill in prefills)])
            record = self._recorder.capture_graph
            self._frames = {frame.rows: (frame, record(frame.draw_codes), record(frame.advance)) for frame in frames}
            self._prefills = {
                shape: (prefill, record(prefill.run)) for shape, prefill in zip(shapes, prefills, strict=True)
            }
        self._recorder.record_event()()

    @torch.inference_mode()
    def prepare(self, request: SpeechRequest, codes: bytes, reference: bytes | None) -> Prepared:
        """Builds a request's prompt. Raises `RequestError` naming the field that this checkpoint cannot serve."""
        with self._preparing.on_stream():
            prompt, reference_codes = self._prompter.build(request, reference)
            frames = np.frombuffer(codes, "<i2").reshape(-1, CODE_GROUPS).astype(np.int64)
            prepared = Prepared(
                request=request,
                prompt=prompt,
                codes=torch.from_numpy(frames).to(self._device),
                max_frames=min(request.max_frames, self._room(len(prompt.embeds))),
                reference_codes=reference_codes,
            )
        self._preparing.record_event()()
        return prepared

    @torch.inference_mode()
    def admit(self, prepared: Sequence[Prepared]) -> None:
        """Queues the prefill of requests, frames that they already have included."""
        with self._recorder.on_stream():
            try:
                waiting = [self._enter(each) for each in prepared]
            except EngineFull:
                for each in prepared:
                    self.release(each.request.id)
                raise
            while waiting:
                waiting = self._prefill(waiting)

    def release(self, request_id: str) -> None:
        """Frees a request's places; what is queued still works there, before whatever comes next."""
        row = self._rows.pop(request_id, None)
        if row is not None:
            self._slots.free([row.place.slot])
            self._pages.free(row.place.pages)
            self._text_pages.free(row.place.text_pages)

    @torch.inference_mode()
    def launch(self, ids: Sequence[str]) -> Step:
        """Queues one frame of each request."""
        chosen: list[str] = []
        full: list[str] = []
        for request_id in ids:
            row = self._rows[request_id]
            if row.stopped or row.full:
                continue
            if row.place.frames >= row.max_frames:
                full.append(request_id)
                row.full = True
            elif self._has_room(row.place):
                chosen.append(request_id)
        if not chosen:
            return Step([], [], full, 0, None)
        rows = [self._rows[request_id] for request_id in chosen]
        ring = self._ring = self._ring % (RING - 1) + 1
        frame, draw, advance = self._frames[bucket_for(self._sizes, len(rows))]
        with self._recorder.on_stream():
            self._tell(frame.meta, [self._where(row.place, ring) for row in rows])
            draw()
            wait = self._recorder.record_event()
            advance()
        for row in rows:
            row.place.frames += 1
            row.place.position += 1
        return Step(chosen, rows, full, ring, wait)

    def read(self, step: Step) -> dict[str, bytes | End]:
        """Waits until a step's codes are there."""
        results: dict[str, bytes | End] = {}
        for request_id in step.full:
            full = self._rows.get(request_id)
            # Its last frame may have been its end, in a step that was read since.
            if full is not None and full.full and not full.stopped:
                results[request_id] = End(EndReason.LENGTH)
        if step.wait is None:
            return results
        step.wait()
        frames = self._arena.handed[step.ring].numpy()
        for index, (request_id, row) in enumerate(zip(step.ids, step.rows, strict=True)):
            if row.stopped or self._rows.get(request_id) is not row:
                continue
            row.stopped = int(frames[index, 0]) == self._config.codec_eos_token_id
            results[request_id] = End(EndReason.STOP) if row.stopped else frames[index].tobytes()
        return results

    # Places ----------------------------------------------------------------------------------------------------

    def _new_arena(self, max_resident: int) -> Arena:
        config, like = self._config, self._weights.norm
        page = (
            config.num_hidden_layers
            * 2
            * config.num_key_value_heads
            * PAGE_SIZE
            * config.head_size
            * like.element_size()
        )
        pages = max(max_resident * num_pages(int(SECONDS_RESIDENT * FAMILY.frames_per_second)), MOST_PAGES)
        if self._device.type == "cuda":
            pages = min(pages, int(torch.cuda.mem_get_info(self._device)[0] * MOST_SHARE) // page)
        return new_arena(
            config,
            like,
            slots=max_resident + 1,
            pages=1 + pages,
            page=PAGE_SIZE,
            texts=PAGE_SIZE * (1 + num_pages(max_resident * TEXT_ROWS)),
            ring=RING,
            most_rows=max_resident,
            most_prefill=PREFILL_POSITIONS,
        )

    def _room(self, prompt: int) -> int:
        return min(self._config.max_position_embeddings, MOST_PAGES * PAGE_SIZE) - prompt

    def _has_room(self, place: Allocation) -> bool:
        """Takes a page if the next position begins one. Without a free one the row waits until another is over."""
        missing = place.missing_pages(1)
        if missing > len(self._pages):
            return False
        place.pages += self._pages.allocate(missing)
        return True

    def _where(self, place: Allocation, ring: int) -> list[int]:
        return [place.slot, place.position, place.frames, place.text_row(), ring, *place.pages]

    def _tell(self, meta: Tensor, rows: Sequence[Sequence[int]]) -> None:
        """Queues the copy of a step's numbers; rows that are not given are scratch."""
        self._stage = (self._stage + 1) % len(self._staged)
        self._staged_free[self._stage]()
        staged = self._staged[self._stage][: meta.numel()].view(meta.shape)
        numbers = staged.numpy()
        numbers.fill(0)
        for index, row in enumerate(rows):
            numbers[index, : len(row)] = row
        meta.copy_(staged, non_blocking=True)
        self._staged_free[self._stage] = self._recorder.record_event()

    # Prefill ---------------------------------------------------------------------------------------------------

    def _enter(self, prepared: Prepared) -> _Prompt:
        """Gives a request its places. Raises `EngineFull`."""
        request, prompt = prepared.request, prepared.prompt
        self.release(request.id)
        texts = len(prompt.text_rows)
        embeds = prompt.embeds
        if prepared.frames:
            rows = torch.stack([prompt.text_row(frame) for frame in range(prepared.frames)])
            embeds = torch.cat((embeds, self._talker.embed_frame(prepared.codes) + rows))
        wanted = num_pages(len(embeds) + 1), num_pages(texts)
        fits = wanted[0] <= min(len(self._pages), MOST_PAGES) and wanted[1] <= len(self._text_pages)
        if not (fits and len(self._slots)):
            raise EngineFull
        place = Allocation(
            slot=self._slots.allocate(1)[0],
            pages=self._pages.allocate(wanted[0]),
            text_pages=self._text_pages.allocate(wanted[1]),
            texts=texts,
            frames=prepared.frames,
        )
        arena, slot = self._arena, place.slot
        arena.texts[0] = prompt.pad_row
        for index, page in enumerate(place.text_pages):
            part = prompt.text_rows[index * PAGE_SIZE : (index + 1) * PAGE_SIZE]
            arena.texts[page * PAGE_SIZE : page * PAGE_SIZE + len(part)] = part
        arena.sampling_params[slot] = torch.tensor(sampling_params(request.sampling)).to(
            self._device, non_blocking=True
        )
        # An assignment would wait for the device.
        arena.seeds[slot].fill_(signed_seed(request.seed))
        arena.seen[slot].zero_()
        arena.seen[slot].index_fill_(0, prepared.codes[:, 0], 1)
        self._recorder.record_stream(embeds, *prompt, prepared.codes)
        row = self._rows[request.id] = _Row(place=place, max_frames=prepared.max_frames)
        return _Prompt(row, embeds)

    def _prefill(self, waiting: Sequence[_Prompt]) -> list[_Prompt]:
        """Queues one prefill of as many as go together; returns what is left to feed."""
        length = bucket_for(LENGTHS, min(max(len(item.embeds) for item in waiting), LENGTHS[-1]))
        most = max(rows for rows in PREFILL_ROWS if rows * length <= PREFILL_POSITIONS)
        chosen = waiting[:most]
        rows = bucket_for(PREFILL_ROWS, len(chosen))
        prefill, run = self._prefills[rows, length]
        told, left = [], []
        for index, item in enumerate(chosen):
            place, part = item.row.place, item.embeds[:length]
            prefill.embeds[index * length : index * length + len(part)] = part
            told.append([place.slot, place.position, len(part), 0, 0, *place.pages])
            place.position += len(part)
            if len(item.embeds) > length:
                left.append(_Prompt(item.row, item.embeds[length:]))
        self._tell(prefill.meta, told)
        run()
        return [*left, *waiting[most:]]
