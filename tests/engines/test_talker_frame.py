"""The talker's GPU steps in Triton's interpreter, compared with the float32 modules, over memory full of NaN."""

import support.interpreter  # noqa: F401, I001 (before any kernel)

from pathlib import Path

import msgspec
import pytest
import torch
from support import small_talker
from support.talker_lifetimes import SAMPLINGS, ReferenceRequest, Reference, poison_buffers

from syrinx_stages.contract.messages import SpeechRequest
from syrinx_stages.kernels.metadata import NUM_COLUMNS
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.talker import layers
from syrinx_stages.talker.frame import DeviceState, FrameStep, PrefillStep, sampling_params
from syrinx_stages.talker.packed import pack

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

PAGE, PAGES, SLOTS = 16, 9, 5
LENGTH = 16
"""Of the prefill."""


class RequestMemory(msgspec.Struct, frozen=True):
    """One request's allocation."""

    slot: int
    pages: tuple[int, ...]


MEMORY = (RequestMemory(3, (7, 2, 5)), RequestMemory(1, (4, 8, 1)))


class Rig:
    """A prefill and a frame of three rows for two requests."""

    def __init__(self, directory: Path) -> None:
        checkpoint = Checkpoint(str(directory))
        self.reference = Reference(checkpoint)
        talker = checkpoint.load_talker()
        weights, config = pack(talker), talker.config
        self.state = DeviceState(
            config, weights.norm, slots=SLOTS, pages=PAGES, page_size=PAGE, ring=3, max_rows=3,
            max_prefill=3 * LENGTH,
        )  # fmt: skip
        for tensor in (self.state.hidden, self.state.cache, self.state.sampling_params):
            tensor.fill_(torch.nan)
        self.state.host_codes.fill_(-1)
        self.prefill = PrefillStep(weights, self.state, 3, LENGTH, 5)
        self.frame = FrameStep(weights, config, self.state, 3, 5)

    def start(self, requests: list[SpeechRequest]) -> list[ReferenceRequest]:
        """Prefills two requests over whatever the memory holds."""
        rows = [self.reference.start(request) for request in requests]
        state, prefill = self.state, self.prefill
        prefill.upload.zero_()
        poison_buffers(prefill, prefill.layers)
        for index, (row, memory) in enumerate(zip(rows, MEMORY, strict=True)):
            prompt = row.ids
            state.sampling_params[memory.slot] = torch.tensor(sampling_params(row.request.sampling))
            state.seeds[memory.slot] = row.request.seed
            state.seen[memory.slot] = 0
            prefill.inputs[index * LENGTH : index * LENGTH + prompt.positions, :2] = torch.from_numpy(prompt.inputs)
            prefill.metadata[index, :3] = torch.tensor([memory.slot, 0, prompt.positions])
            prefill.metadata[index, NUM_COLUMNS : NUM_COLUMNS + len(memory.pages)] = torch.tensor(memory.pages)
        prefill.run()
        return rows

    def step(self, rows: list[ReferenceRequest], ring: int) -> list[float]:
        """Runs a frame of both; returns its errors, see `Reference.errors`."""
        frame = self.frame
        poison_buffers(frame, frame.talker, frame.code_sampler, frame.code_sampler.pair, frame.code_sampler.single)
        frame.metadata.zero_()
        for index, (row, memory) in enumerate(zip(rows, MEMORY, strict=True)):
            count = len(row.frames)
            prompt = row.ids
            metadata = torch.tensor(
                [memory.slot, prompt.positions + count, count, prompt.text(count), ring, *memory.pages]
            )
            frame.metadata[index, : len(metadata)] = metadata
        frame.sample_codes()
        frame.decode()
        frames = [self.state.host_codes[ring, index].numpy().tobytes() for index in range(len(rows))]
        return self.reference.errors(rows, frames)

    def check_hidden(self, rows: list[ReferenceRequest]) -> None:
        """Compares the hidden states."""
        hidden = self.state.hidden[[memory.slot for memory in MEMORY]]
        torch.testing.assert_close(hidden, torch.stack([row.hidden for row in rows]), atol=1e-5, rtol=1e-5)


def requests(seed: int) -> list[SpeechRequest]:
    """Returns one request whose short text comes with the frames, and one with its text in the prompt."""
    endless = [msgspec.structs.replace(SAMPLINGS[number], min_frames=99) for number in (1, 2)]
    return [
        small_talker.request("a", "no", non_streaming_text=False, sampling=endless[0], seed=seed),
        small_talker.request("b", "Hello there.", sampling=endless[1], seed=-seed),
    ]


@pytest.mark.parametrize(
    "fused", [pytest.param(True, id="fused"), pytest.param(False, id="library", marks=pytest.mark.night)]
)
@torch.inference_mode()
def test_frames_of_fewer_rows_than_the_step_over_reused_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fused: bool
) -> None:
    monkeypatch.setattr(layers, "FUSED_ELEMENTS", 1 << 20 if fused else 0)
    rig = Rig(small_talker.write(tmp_path / "voice", predictor_layers=2))
    for ring in (1, 2):
        rows = rig.start(requests(seed=ring))
        rig.check_hidden(rows)
        assert rig.step(rows, ring) == [0, 0]
        rig.check_hidden(rows)
    # Padded rows use only scratch memory: slot 0, page 0 and ring entry 0.
    state = rig.state
    used = {page for memory in MEMORY for page in memory.pages}
    assert state.cache[:, sorted(set(range(1, PAGES)) - used)].isnan().all()
    assert state.hidden[[2, 4]].isnan().all()
    assert not state.seen[[2, 4]].any()
    assert (state.host_codes[1:, 2] == -1).all()
    assert not state.workspace.counters.any()
