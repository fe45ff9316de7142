"""The talker's steps as fixed sequences of kernels over fixed buffers, so that they can be captured as CUDA graphs.

A frame has two parts. `FrameStep.sample_codes` samples the 16 codes of every row from its hidden state;
`FrameStep.decode` feeds their embeddings and that of the next text token through the talker, which yields the next
hidden state. `PrefillStep` yields the first hidden state. `MixedStep` does `decode` of one and all of the other.
"""

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
    embed_prompts,
    norm_last_position,
    sample_first_code,
    sample_residual_code,
)
from syrinx_stages.kernels.split_k import SplitKWorkspace
from syrinx_stages.model.config import CODE_GROUPS, SPECIAL_IDS, TalkerConfig
from syrinx_stages.model.sampling import MIN_TEMPERATURE, signed_seed
from syrinx_stages.talker.cuda.layers import Attend, LibraryLayers, new_split_k_workspace, new_stack
from syrinx_stages.talker.cuda.packed import PackedTalker
from syrinx_stages.talker.cuda.tiles import choose_tile

INPUT_COLUMNS = 3
"""Of `PrefillStep.inputs`."""


def sampling_params(sampling: Sampling) -> list[list[float]]:
    """Returns a slot's sampling parameters [2, NUM_SAMPLING_PARAMS]: for code 0, then for the residual codes."""
    temperatures = [t if t >= MIN_TEMPERATURE else 0.0 for t in (sampling.temperature, sampling.residual_temperature)]
    code0 = [temperatures[0], sampling.top_k, sampling.top_p, sampling.repetition_penalty, sampling.min_frames]
    residual = [temperatures[1], sampling.residual_top_k, sampling.residual_top_p, 1, 0]
    return [code0, residual]


class SamplingState:
    """What sampling needs of each request, by slot."""

    def __init__(self, slots: int, vocabulary: int, device: torch.device) -> None:
        self.sampling_params = torch.zeros(slots, 2, NUM_SAMPLING_PARAMS, dtype=torch.float32, device=device)
        self.seeds = torch.zeros(slots, dtype=torch.int64, device=device)
        self.seen = torch.zeros(slots, vocabulary, dtype=torch.int8, device=device)
        """1 for each code 0 that the request has generated. Its first frame clears what an earlier request has left."""
        # A copy from pageable memory would wait for the device. An unfinished copy may take along what a later request
        # of a slot writes: steps before the next copy are of the earlier one, which was released and is not read.
        self._host_params = torch.zeros(self.sampling_params.shape, pin_memory=device.type == "cuda")
        self._host_seeds = torch.zeros(slots, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._params, self._seeds = self._host_params.numpy(), self._host_seeds.numpy()

    def write(self, slot: int, sampling: Sampling, seed: int, codes: Tensor) -> None:
        """Writes a slot for the next `upload`. codes: int64 [frames, 16] on the device, generated already."""
        self._params[slot], self._seeds[slot] = sampling_params(sampling), signed_seed(seed)
        if len(codes):
            self.seen[slot].zero_()
            self.seen[slot].index_fill_(0, codes[:, 0], 1)

    def upload(self) -> None:
        """Copies what was written to the device, without waiting for it."""
        self.sampling_params.copy_(self._host_params, non_blocking=True)
        self.seeds.copy_(self._host_seeds, non_blocking=True)

    def inputs(self, metadata: Tensor) -> SamplingInputs:
        """Returns the kernels' inputs for a step with this metadata."""
        return SamplingInputs(metadata, self.sampling_params, self.seeds, self.seen)


class DeviceState(SamplingState):
    """The device memory that persists between steps. Slot 0 and page 0 are scratch memory for padded rows."""

    def __init__(
        self, config: TalkerConfig, like: Tensor, *,
        slots: int, pages: int, page_size: int, ring: int, max_rows: int, max_prefill: int,
    ) -> None:  # fmt: skip
        """Allocates memory on the device and in the dtype of `like`.

        max_rows: of a frame. max_prefill: positions of a prefill, padding included.
        """
        super().__init__(slots, config.vocab_size, like.device)
        self.hidden = like.new_zeros(slots, config.hidden_size)
        """The normalized output at each request's last position."""
        shape = (config.num_hidden_layers, pages, 2, config.num_key_value_heads, page_size, config.head_size)
        self.cache = like.new_zeros(shape)
        self.host_codes = torch.zeros(ring, max_rows, CODE_GROUPS, dtype=torch.int16, pin_memory=like.is_cuda)
        """In pinned host memory: the frames of the last steps."""
        self.workspace = new_split_k_workspace(config, like, max(2 * max_rows, max_prefill))


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
        self.pair = new_stack(predictor, weights.predictor_eps, 2 * rows, workspace)
        """For the predictor's first two positions, the hidden state and code 0, which are computed together."""
        self.single = new_stack(predictor, weights.predictor_eps, rows, workspace)
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
        self.talker = new_stack(weights.layers, weights.eps, rows, state.workspace)

    def sample_codes(self) -> None:
        """Samples the 16 codes of every row, copies them to the host, and embeds them as the talker's next input."""
        weights, state, talker = self._weights, self._state, self.talker
        inputs = state.inputs(self.metadata)
        self.code_sampler.run(inputs, state.hidden, self.metadata)
        embed_frame(
            inputs, self.code_sampler.codes, weights.first, weights.rest, weights.texts, talker.x,
            talker.sum_of_squares, state.host_codes,
        )  # fmt: skip

    def decode(self) -> None:
        """Feeds the frame to the talker, which yields the next hidden states."""
        self.talker.run(self.attend)
        self.write_hidden(self.talker.x, self.talker.sum_of_squares)

    def attend(self, layer: int, params: AttentionParams, qkv: Tensor, out: Tensor) -> None:
        """Computes a layer's attention; see `Attend`."""
        positions, page_table = self.metadata[:, POSITION.value], self.metadata[:, NUM_COLUMNS:]
        attention.decode_attention(params, qkv, self._state.cache[layer], page_table, positions, out, self.rows)

    def write_hidden(self, x: Tensor, sum_of_squares: Tensor) -> None:
        """Writes the hidden states from the layers' output [rows, H]."""
        weights = self._weights
        norm_last_position(x, sum_of_squares, weights.norm, weights.eps, self.metadata, self._state.hidden)


class PrefillStep:
    """The prompts of `rows` requests, padded to `length` positions."""

    def __init__(
        self, weights: PackedTalker, state: DeviceState, rows: int, length: int, max_pages: int,
        shared: LibraryLayers | None = None,
    ) -> None:  # fmt: skip
        """max_pages: cache pages of one request. shared: see `new_stack`."""
        self._weights, self._state = weights, state
        self.rows, self.length = rows, length
        like = weights.norm
        positions, columns = rows * length * INPUT_COLUMNS, NUM_COLUMNS + max_pages
        self.upload = torch.zeros(positions + rows * columns, dtype=torch.int32, device=like.device)
        """`inputs` and `metadata`, which are written together."""
        self.inputs = self.upload[:positions].view(-1, INPUT_COLUMNS)
        """The step's input [rows * length, 3], see `embed_prompts`."""
        self.metadata = self.upload[positions:].view(rows, columns)
        """The step's input, see `kernels.metadata`."""
        self.added = like.new_zeros(rows * length, like.shape[0])
        """[rows * length, H], the step's input: added to those of `inputs` that say so."""
        self.layers = new_stack(weights.layers, weights.eps, rows * length, state.workspace, shared)
        self._queries = like.new_zeros(rows * length, weights.layers[0].output.shape[1])

    def run(self) -> None:
        """Fills the cache and writes the hidden state of each row's last position."""
        layers = self.layers
        self.embed(layers.x, layers.sum_of_squares)
        layers.run(self.attend)
        self.write_hidden(layers.x, layers.sum_of_squares)

    def embed(self, x: Tensor, sum_of_squares: Tensor) -> None:
        """Writes the layers' inputs [rows * length, H]."""
        embed_prompts(self.inputs, self._weights.texts, self._weights.first, self.added, x, sum_of_squares)

    def attend(self, layer: int, params: AttentionParams, qkv: Tensor, out: Tensor) -> None:
        """Computes a layer's attention; see `Attend`."""
        metadata = self.metadata
        positions, lengths = metadata[:, POSITION.value], metadata[:, NUM_POSITIONS.value]
        attention.prefill_attention(
            params, qkv, self._state.cache[layer], metadata[:, NUM_COLUMNS:], positions, lengths, self._queries, out,
            self.length,
        )  # fmt: skip

    def write_hidden(self, x: Tensor, sum_of_squares: Tensor) -> None:
        """Writes the hidden states from the layers' output [rows * length, H]."""
        weights = self._weights
        norm_last_position(x, sum_of_squares, weights.norm, weights.eps, self.metadata, self._state.hidden, self.length)


class MixedStep:
    """The second part of a frame, with prompts beside it: the weights are read once for both."""

    def __init__(
        self, weights: PackedTalker, state: DeviceState, frame: FrameStep, prefill: PrefillStep,
        shared: LibraryLayers | None = None,
    ) -> None:  # fmt: skip
        """frame: its `sample_codes` has written the input. prefill: its inputs have the prompts.

        shared: see `new_stack`.
        """
        self._frame, self._prefill = frame, prefill
        rows = frame.rows + len(prefill.inputs)
        self.layers = new_stack(weights.layers, weights.eps, rows, state.workspace, shared)

    def run(self) -> None:
        """Yields the next hidden states of the frame's rows, and the first ones of the prompts."""
        layers, frame, prefill = self.layers, self._frame, self._prefill
        rows = frame.rows
        copy_rows(frame.talker.x, layers.x[:rows], layers.sum_of_squares[:rows])
        prefill.embed(layers.x[rows:], layers.sum_of_squares[rows:])

        def attend(layer: int, params: AttentionParams, qkv: Tensor, out: Tensor) -> None:
            frame.attend(layer, params, qkv[:rows], out[:rows])
            prefill.attend(layer, params, qkv[rows:], out[rows:])

        layers.run(attend)
        frame.write_hidden(layers.x[:rows], layers.sum_of_squares[:rows])
        prefill.write_hidden(layers.x[rows:], layers.sum_of_squares[rows:])
