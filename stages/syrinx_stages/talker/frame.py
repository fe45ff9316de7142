"""The talker's steps as fixed sequences of kernels over fixed buffers, so that they can be captured as CUDA graphs.

A frame has two parts. `FrameStep.sample_codes` samples the 16 codes of every row from its hidden state;
`FrameStep.decode` feeds their embeddings and the next text row through the talker, which yields the next hidden state.
`PrefillStep` yields the first hidden state.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from syrinx_stages.contract.messages import Sampling
from syrinx_stages.kernels import attention
from syrinx_stages.kernels.attention import AttentionParams
from syrinx_stages.kernels.linear import linear
from syrinx_stages.kernels.metadata import NUM_COLUMNS, NUM_POSITIONS, POSITION
from syrinx_stages.kernels.sampling import (
    NUM_SAMPLING_PARAMS,
    SamplingInputs,
    copy_rows,
    embed_frame,
    norm_last_position,
    sample_first_code,
    sample_residual_code,
)
from syrinx_stages.kernels.split_k import SplitKWorkspace
from syrinx_stages.model.config import CODE_GROUPS, SPECIAL_IDS, TalkerConfig
from syrinx_stages.model.sampling import MIN_TEMPERATURE, signed_seed
from syrinx_stages.talker.packed import PackedLayer, PackedTalker
from syrinx_stages.talker.tiles import MAX_SPLIT_K, choose_tile

Attend = Callable[[int, AttentionParams, Tensor, Tensor], None]
"""Computes a layer's attention: called with the layer's number, its parameters, qkv [rows, ...] and the output."""


def sampling_params(sampling: Sampling) -> list[list[float]]:
    """Returns a slot's sampling parameters [2, NUM_SAMPLING_PARAMS]: for code 0, then for the residual codes."""
    temperatures = [t if t >= MIN_TEMPERATURE else 0.0 for t in (sampling.temperature, sampling.residual_temperature)]
    code0 = [temperatures[0], sampling.top_k, sampling.top_p, sampling.repetition_penalty, sampling.min_frames]
    residual = [temperatures[1], sampling.residual_top_k, sampling.residual_top_p, 1, 0]
    return [code0, residual]


class SamplingState:
    """What sampling needs of each request, by slot."""

    def __init__(self, slots: int, vocabulary: int, frames: int, device: torch.device) -> None:
        """frames: as many of the last frames keep their marks until these are read."""
        self.sampling_params = torch.zeros(slots, 2, NUM_SAMPLING_PARAMS, dtype=torch.float32, device=device)
        self.seeds = torch.zeros(slots, dtype=torch.int64, device=device)
        self.seen = torch.zeros(slots, vocabulary, dtype=torch.int8, device=device)
        """1 for each code 0 that the request has generated. Its first frame clears what an earlier request has left."""
        self.host_marks = torch.zeros(slots, frames, dtype=torch.int16, pin_memory=device.type == "cuda")
        """In pinned host memory; see `SamplingInputs.marks`."""
        # A copy from pageable memory would wait for the device. A later request of a slot may overwrite its row here
        # before it is copied: then no step of the earlier one follows.
        self._host_params = torch.zeros(self.sampling_params.shape, pin_memory=device.type == "cuda")

    def write(self, slot: int, sampling: Sampling, seed: int, codes: Tensor) -> None:
        """Writes a slot without waiting for the device. codes: int64 [frames, 16] on it, generated already."""
        self._host_params[slot].numpy()[:] = sampling_params(sampling)
        self.sampling_params[slot].copy_(self._host_params[slot], non_blocking=True)
        # Assigning a Python number would wait for the device.
        self.seeds[slot].fill_(signed_seed(seed))
        if len(codes):
            self.seen[slot].zero_()
            self.seen[slot].index_fill_(0, codes[:, 0], 1)

    def inputs(self, metadata: Tensor) -> SamplingInputs:
        """Returns the kernels' inputs for a step with this metadata."""
        return SamplingInputs(metadata, self.sampling_params, self.seeds, self.seen, self.host_marks)

    def read_marks(self, slots: Sequence[int], frames: Sequence[int]) -> list[int]:
        """Returns the marks of frames by their slots and numbers; their step must be done."""
        marks = self.host_marks.numpy().view(np.uint16)
        read: list[int] = marks[np.array(slots, int), np.array(frames, int) % marks.shape[1]].tolist()
        return read


class DeviceState(SamplingState):
    """The device memory that persists between steps. Slot 0 and page 0 are scratch memory for padded rows."""

    def __init__(
        self, config: TalkerConfig, like: Tensor, *,
        slots: int, pages: int, page_size: int, text_rows: int, ring: int, max_rows: int, max_prefill: int,
    ) -> None:  # fmt: skip
        """Allocates memory on the device and in the dtype of `like`.

        max_rows: of a frame. max_prefill: positions of a prefill, padding included.
        """
        super().__init__(slots, config.vocab_size, ring, like.device)
        self.hidden = like.new_zeros(slots, config.hidden_size)
        """The normalized output at each request's last position."""
        shape = (config.num_hidden_layers, pages, 2, config.num_key_value_heads, page_size, config.head_size)
        self.cache = like.new_zeros(shape)
        self.text_rows = like.new_zeros(text_rows, config.hidden_size)
        """Embeddings of all requests' texts; row 0 is the padding."""
        self.host_codes = torch.zeros(ring, max_rows, CODE_GROUPS, dtype=torch.int16, pin_memory=like.is_cuda)
        """In pinned host memory: the frames of the last steps."""
        self.workspace = new_split_k_workspace(config, like, max(2 * max_rows, max_prefill))


def new_split_k_workspace(config: TalkerConfig, like: Tensor, max_rows: int) -> SplitKWorkspace:
    """Returns a workspace for the products of one step at a time, each with up to `max_rows` rows."""
    width = max(config.hidden_size, config.code_predictor_config.hidden_size)
    rows = -(-max_rows // 64) * 64
    return SplitKWorkspace(
        partial_sums=like.new_zeros(MAX_SPLIT_K * rows * width, dtype=torch.float32),
        counters=like.new_zeros(rows // 64 * width, dtype=torch.int32),
    )


class LayerStack:
    """Decoder layers over `rows` rows, with their buffers.

    `x` [rows, H] is the input and the residual stream, `sum_of_squares` float32 [rows, parts] its sums of squares.
    """

    def __init__(self, layers: list[PackedLayer], eps: float, rows: int, workspace: SplitKWorkspace) -> None:
        """workspace: see `new_split_k_workspace`."""
        first = layers[0]
        width, inner = first.qkv.shape[1], first.down.shape[1]
        self.rows, self.eps, self._layers, self._workspace = rows, eps, layers, workspace
        self.tiles = {
            "qkv": choose_tile(rows, first.qkv),
            "output": choose_tile(rows, first.output, residual=True),
            "gate_up": choose_tile(rows, first.gate_up, gated=True),
            "down": choose_tile(rows, first.down, residual=True),
        }
        parts = width // self.tiles["down"].columns
        new = first.qkv.new_zeros
        self.x = new(rows, width)
        self.sum_of_squares = new(rows, parts, dtype=torch.float32)
        self._qkv = new(rows, first.qkv.shape[0])
        self._attended = new(rows, first.output.shape[1])
        self._gated = new(rows, inner)

    def run(self, attend: Attend) -> None:
        """Runs all layers on `x`, in place."""
        for index, layer in enumerate(self._layers):
            self._product("qkv", self.x, layer.qkv, self._qkv)
            attend(index, layer.attention, self._qkv, self._attended)
            self._product("output", self._attended, layer.output, self.x)
            self._product("gate_up", self.x, layer.gate_up, self._gated)
            self._product("down", self._gated, layer.down, self.x)

    def _product(self, name: str, x: Tensor, weight: Tensor, out: Tensor) -> None:
        adds = out is self.x
        linear(
            x, weight, out, self.tiles[name], rows=self.rows, workspace=self._workspace,
            sum_of_squares=None if adds else self.sum_of_squares, eps=self.eps, gated=name == "gate_up",
            launch_early=name == "qkv", residual=self.x if adds else None,
            out_sum_of_squares=self.sum_of_squares if adds else None,
        )  # fmt: skip


class CodeSampler:
    """Samples the 16 codes of `rows` rows from the talker's hidden states, with the code predictor."""

    def __init__(self, weights: PackedTalker, config: TalkerConfig, workspace: SplitKWorkspace, rows: int) -> None:
        """workspace: see `new_split_k_workspace`, for twice the rows."""
        self._weights, self._config, self._workspace = weights, config, workspace
        like = weights.norm
        self.rows = rows
        self.codes = torch.zeros(rows, CODE_GROUPS, dtype=torch.int32, device=like.device)
        """int32 [rows, 16], output of `run`."""
        predictor = weights.predictor
        self.pair = LayerStack(predictor, weights.predictor_eps, 2 * rows, workspace)
        """For the predictor's first two positions, the hidden state and code 0, which are computed together."""
        self.single = LayerStack(predictor, weights.predictor_eps, rows, workspace)
        heads = predictor[0].attention
        shape = (len(predictor), rows, 2, heads.num_kv_heads, CODE_GROUPS, heads.head_size)
        self._cache = like.new_zeros(shape)
        self._page_table = torch.arange(rows, dtype=torch.int32, device=like.device)[:, None]
        positions = torch.arange(CODE_GROUPS, dtype=torch.int32, device=like.device)
        self._positions = positions[:, None].expand(-1, rows).contiguous()
        self._head_tile = choose_tile(rows, weights.head)
        self._code_tile = choose_tile(rows, weights.code_heads[0])
        self._logits = torch.empty(rows, weights.head.shape[0], dtype=torch.float32, device=like.device)
        self._scores = torch.empty(rows, weights.code_heads.shape[1], dtype=torch.float32, device=like.device)

    def run(self, inputs: SamplingInputs, hidden: Tensor, row_index: Tensor | None = None) -> None:
        """Samples `codes` from `hidden` [rows, H]; with `row_index`, from the rows that its column 0 selects."""
        weights, pair, single = self._weights, self.pair, self.single
        linear(
            hidden, weights.head, self._logits, self._head_tile, rows=self.rows, row_index=row_index,
            workspace=self._workspace,
        )  # fmt: skip
        sample_first_code(
            inputs, self._logits, weights.head_bias, weights.first_input, self.codes, pair.x, pair.sum_of_squares,
            eos=self._config.codec_eos_token_id, num_special=SPECIAL_IDS,
        )  # fmt: skip
        pair.run(self._attend_at(None))
        self._sample_residual(inputs, 1, pair.x[self.rows :], pair.sum_of_squares[self.rows :])
        for group in range(2, CODE_GROUPS):
            single.run(self._attend_at(self._positions[group]))
            self._sample_residual(inputs, group, single.x, single.sum_of_squares)

    def _sample_residual(self, inputs: SamplingInputs, group: int, x: Tensor, sum_of_squares: Tensor) -> None:
        """Samples a group's codes from the predictor's output `x`; their embeddings are its next input."""
        weights, single = self._weights, self.single
        linear(
            x, weights.code_heads[group - 1], self._scores, self._code_tile, rows=self.rows,
            sum_of_squares=sum_of_squares, eps=weights.predictor_eps, workspace=self._workspace,
        )  # fmt: skip
        table = weights.rest_inputs[group - 1] if group < CODE_GROUPS - 1 else None
        sample_residual_code(inputs, self._scores, group, table, self.codes, single.x, single.sum_of_squares)

    def _attend_at(self, positions: Tensor | None) -> Attend:
        def attend(layer: int, params: AttentionParams, qkv: Tensor, out: Tensor) -> None:
            attention.decode_attention(
                params, qkv, self._cache[layer], self._page_table, positions, out, len(qkv), one_page=True
            )

        return attend


class FrameStep:
    """One frame of `rows` requests."""

    def __init__(
        self, weights: PackedTalker, config: TalkerConfig, state: DeviceState, rows: int, max_pages: int
    ) -> None:
        """max_pages: cache pages of one request."""
        self._weights, self._state = weights, state
        self.rows = rows
        self.metadata = torch.zeros(rows, NUM_COLUMNS + max_pages, dtype=torch.int32, device=weights.norm.device)
        """The step's input, see `kernels.metadata`."""
        self.code_sampler = CodeSampler(weights, config, state.workspace, rows)
        self.talker = LayerStack(weights.layers, weights.eps, rows, state.workspace)

    def sample_codes(self) -> None:
        """Samples the 16 codes of every row, copies them to the host, and embeds them as the talker's next input."""
        weights, state, talker = self._weights, self._state, self.talker
        inputs = state.inputs(self.metadata)
        self.code_sampler.run(inputs, state.hidden, self.metadata)
        embed_frame(
            inputs, self.code_sampler.codes, weights.first, weights.rest, state.text_rows, talker.x,
            talker.sum_of_squares, state.host_codes,
        )  # fmt: skip

    def decode(self) -> None:
        """Feeds the frame to the talker, which yields the next hidden states."""
        weights, state, talker = self._weights, self._state, self.talker
        positions, page_table = self.metadata[:, POSITION.value], self.metadata[:, NUM_COLUMNS:]

        def attend(layer: int, params: AttentionParams, qkv: Tensor, out: Tensor) -> None:
            attention.decode_attention(params, qkv, state.cache[layer], page_table, positions, out, self.rows)

        talker.run(attend)
        norm_last_position(talker.x, talker.sum_of_squares, weights.norm, weights.eps, self.metadata, state.hidden)


class PrefillStep:
    """The prompts of `rows` requests, padded to `length` positions."""

    def __init__(self, weights: PackedTalker, state: DeviceState, rows: int, length: int, max_pages: int) -> None:
        """max_pages: cache pages of one request."""
        self._weights, self._state = weights, state
        self.rows, self.length = rows, length
        like = weights.norm
        self.embeds = like.new_zeros(rows * length, like.shape[0])
        """[rows * length, H], the step's input."""
        self.metadata = torch.zeros(rows, NUM_COLUMNS + max_pages, dtype=torch.int32, device=like.device)
        """The step's input, see `kernels.metadata`."""
        self.layers = LayerStack(weights.layers, weights.eps, rows * length, state.workspace)
        self._queries = like.new_zeros(rows * length, weights.layers[0].output.shape[1])

    def run(self) -> None:
        """Fills the cache and writes the hidden state of each row's last position."""
        weights, state, layers, metadata = self._weights, self._state, self.layers, self.metadata
        copy_rows(self.embeds, layers.x, layers.sum_of_squares)
        positions, lengths = metadata[:, POSITION.value], metadata[:, NUM_POSITIONS.value]
        page_table = metadata[:, NUM_COLUMNS:]

        def attend(layer: int, params: AttentionParams, qkv: Tensor, out: Tensor) -> None:
            cache = state.cache[layer]
            attention.prefill_attention(
                params, qkv, cache, page_table, positions, lengths, self._queries, out, self.length
            )

        layers.run(attend)
        norm_last_position(
            layers.x, layers.sum_of_squares, weights.norm, weights.eps, metadata, state.hidden, self.length
        )
