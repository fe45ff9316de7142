"""A talker's step as a GPU computes it, in Triton's interpreter: as the float32 modules, whatever was there before."""

import support.interpreter  # noqa: F401, I001 (before any kernel)

from pathlib import Path

import msgspec
import pytest
import torch
from support import small_talker
from support.talker_lifetimes import SAMPLINGS, Alone, Reference, poison_buffers

from syrinx_stages.kernels.metadata import NUM_COLUMNS
from syrinx_stages.contract.messages import SpeechRequest
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.talker.sampling_params import sampling_params
from syrinx_stages.talker.frame import Arena, Frame, Prefill, new_arena
from syrinx_stages.talker.packed import pack

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

PAGE, PAGES, SLOTS = 16, 9, 5
LENGTH = 16
"""Of the prefill."""


class Seat(msgspec.Struct, frozen=True):
    """What a request has in the arena."""

    slot: int
    pages: tuple[int, ...]
    text: int
    """The first of its rows of text."""


SEATS = (Seat(3, (7, 2, 5), 1), Seat(1, (4, 8, 1), 20))


class Rig:
    """A prefill and a frame of three rows for two requests, over an arena in which nothing is a number."""

    def __init__(self, directory: Path) -> None:
        checkpoint = Checkpoint(str(directory))
        self.reference = Reference(checkpoint)
        talker = checkpoint.load_talker()
        weights, config = pack(talker), talker.config
        self.arena: Arena = new_arena(
            config, weights.norm, slots=SLOTS, pages=PAGES, page=PAGE, texts=40, ring=3, most_rows=3,
            most_prefill=3 * LENGTH,
        )  # fmt: skip
        for tensor in (self.arena.state, self.arena.cache, self.arena.texts, self.arena.sampling_params):
            tensor.fill_(torch.nan)
        self.arena.handed.fill_(-1)
        self.prefill = Prefill(weights, self.arena, 3, LENGTH, 5)
        self.frame = Frame(weights, config, self.arena, 3, 5)

    def begin(self, requests: list[SpeechRequest]) -> list[Alone]:
        """Prefills two requests; what was in their places, and in all buffers, stays there."""
        rows = [self.reference.begin(request) for request in requests]
        arena, prefill = self.arena, self.prefill
        prefill.meta.zero_()
        poison_buffers(prefill, prefill._stack)
        for index, (row, seat) in enumerate(zip(rows, SEATS, strict=True)):
            prompt = row.prompt
            arena.texts[0] = prompt.pad_row
            arena.texts[seat.text : seat.text + len(prompt.text_rows)] = prompt.text_rows
            arena.sampling_params[seat.slot] = torch.tensor(sampling_params(row.request.sampling))
            arena.seeds[seat.slot] = row.request.seed
            arena.seen[seat.slot] = 0
            prefill.embeds[index * LENGTH : index * LENGTH + len(prompt.embeds)] = prompt.embeds
            prefill.meta[index, :3] = torch.tensor([seat.slot, 0, len(prompt.embeds)])
            prefill.meta[index, NUM_COLUMNS : NUM_COLUMNS + len(seat.pages)] = torch.tensor(seat.pages)
        prefill.run()
        return rows

    def step(self, rows: list[Alone], ring: int) -> list[float]:
        """A frame of both; returns how wrong it was."""
        frame = self.frame
        poison_buffers(frame, frame._talker, frame.draws, frame.draws._pair, frame.draws._single)
        frame.meta.zero_()
        for index, (row, seat) in enumerate(zip(rows, SEATS, strict=True)):
            count = len(row.frames)
            text = seat.text + count if count < len(row.prompt.text_rows) else 0
            frame.meta[index, :NUM_COLUMNS] = torch.tensor(
                [seat.slot, len(row.prompt.embeds) + count, count, text, ring]
            )
            frame.meta[index, NUM_COLUMNS : NUM_COLUMNS + len(seat.pages)] = torch.tensor(seat.pages)
        frame.draw_codes()
        frame.advance()
        said = [self.arena.handed[ring, index].numpy().tobytes() for index in range(len(rows))]
        return self.reference.misses(rows, said)

    def check_states(self, rows: list[Alone]) -> None:
        """The states that the next frame is drawn from."""
        states = self.arena.state[[seat.slot for seat in SEATS]]
        torch.testing.assert_close(states, torch.stack([row.hidden for row in rows]), atol=1e-5, rtol=1e-5)


def requests(seed: int) -> list[SpeechRequest]:
    """One whose text comes with its frames and is soon over, one that is given it at once; neither ends."""
    common = [msgspec.structs.replace(SAMPLINGS[number], min_frames=99) for number in (1, 2)]
    return [
        small_talker.request("a", "no", non_streaming_text=False, sampling=common[0], seed=seed),
        small_talker.request("b", "Hello there.", sampling=common[1], seed=-seed),
    ]


@torch.inference_mode()
def test_frames_of_rows_in_a_larger_step_over_memory_that_others_left_behind(tmp_path: Path) -> None:
    rig = Rig(small_talker.write(tmp_path / "voice", predictor_layers=2))
    for seed, rings in ((1, (1, 2)), (2, (1,))):
        rows = rig.begin(requests(seed))
        rig.check_states(rows)
        for ring in rings:
            assert rig.step(rows, ring) == [0, 0]
            rig.check_states(rows)
    # Padding works in scratch alone: slot, page and place 0.
    arena = rig.arena
    used = {page for seat in SEATS for page in seat.pages}
    assert arena.cache[:, sorted(set(range(1, PAGES)) - used)].isnan().all()
    assert arena.state[[2, 4]].isnan().all()
    assert not arena.seen[[2, 4]].any()
    assert (arena.handed[1:, 2] == -1).all()
    assert not arena.sharing.arrived.any()
