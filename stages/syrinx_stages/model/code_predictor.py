"""The code predictor: generates codes 1 to 15 of a frame from the talker's hidden state and code 0."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from syrinx_stages.model.config import CODE_GROUPS, CodePredictorConfig
from syrinx_stages.model.layers import CheckpointTensor, DecoderStack, Linear, Packed
from syrinx_stages.model.linear import pad_columns, pad_rows, padded_columns

SampleFn = Callable[[Tensor, int], Tensor]
"""Maps (logits [rows, codebook_size], group 1 to 15) to codes [rows] int64. Called with groups 1 to 15 in turn."""


class CodeEmbeddings(Packed):
    """The embedding tables of codes 1 to 15 as one table, so that a frame's sum is one lookup."""

    offsets: Tensor

    def __init__(self, codebook_size: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(CODE_GROUPS - 1, codebook_size, width))
        self.register_buffer("offsets", torch.arange(CODE_GROUPS - 1) * codebook_size, persistent=False)

    def checkpoint_tensors(self) -> Iterator[tuple[str, CheckpointTensor]]:
        for group, table in enumerate(self.weight.detach()):
            yield f"codec_embedding.{group}.weight", CheckpointTensor(tuple(table.shape), table)

    def forward(self, codes: Tensor, group: int) -> Tensor:
        """Maps codes [rows] of a group (1 to 15) to embeddings [rows, width]."""
        return F.embedding(codes, self.weight[group - 1])

    def sum(self, codes: Tensor) -> Tensor:
        """Maps codes [rows, 15] to the sum of their embeddings [rows, width]."""
        return F.embedding_bag(codes + self.offsets, self.weight.flatten(0, 1), mode="sum")


class PredictorModel(DecoderStack):
    """The decoder stack and the code embeddings, with the checkpoint's names."""

    def __init__(self, config: CodePredictorConfig, talker_width: int) -> None:
        super().__init__(config, positions=CODE_GROUPS)
        self.embeddings = CodeEmbeddings(config.vocab_size, talker_width)


class CodePredictor(nn.Module):
    """Generates codes 1 to 15. All rows are at the same position, so they share one cache of 16 positions."""

    def __init__(self, config: CodePredictorConfig, talker_width: int) -> None:
        super().__init__()
        self.config = config
        self.model = PredictorModel(config, talker_width)
        self.lm_head = nn.ModuleList(Linear(config.hidden_size, config.vocab_size) for _ in range(CODE_GROUPS - 1))
        same = config.hidden_size == talker_width
        self.small_to_mtp_projection = nn.Identity() if same else Linear(talker_width, config.hidden_size, bias=True)

    def generate(self, hidden: Tensor, code0: Tensor, code0_embedding: Tensor, sample: SampleFn) -> Tensor:
        """Returns whole frames [rows, 16] for talker states [rows, talker_width], code 0 [rows] and its embedding."""
        rows = hidden.shape[0]
        first = self.lm_head[0]
        assert isinstance(first, Linear)
        like = first.operand
        hidden = pad_rows(hidden, like)
        cache = self._new_cache(hidden)
        self._step(hidden, 0, cache)
        codes, embedding = [code0], code0_embedding
        for group in range(1, CODE_GROUPS):
            logits = self.lm_head[group - 1](self._step(pad_rows(embedding, like), group, cache))
            codes.append(sample(logits[:rows], group))
            if group < CODE_GROUPS - 1:
                embedding = self.model.embeddings(codes[-1].clamp(min=0), group)
        return torch.stack(codes, 1)

    def _new_cache(self, hidden: Tensor) -> Tensor:
        """Returns memory for keys and values: [layers, rows, 2 * kv_heads, 16, head_size]."""
        config = self.config
        heads = 2 * config.num_key_value_heads
        shape = (config.num_hidden_layers, hidden.shape[0], heads, CODE_GROUPS, padded_columns(config.head_size))
        return hidden.new_empty(shape)

    def _step(self, embedding: Tensor, position: int, cache: Tensor) -> Tensor:
        """Runs one position of every row: inputs [rows, talker_width] to normalized states [rows, hidden_size]."""
        config = self.config
        heads, kv_heads, size = config.num_attention_heads, config.num_key_value_heads, config.head_size
        stored = torch.split(cache.narrow(3, 0, position + 1), kv_heads, 2)
        new, keys, values = cache.select(3, position).unbind(), stored[0].unbind(), stored[1].unbind()

        def attend(layer: int, qkv: Tensor) -> Tensor:
            qkv = pad_columns(qkv)
            new[layer].copy_(qkv.narrow(1, heads, 2 * kv_heads))
            # Queries that share a key head are passed as its query positions, so that no key is repeated.
            queries = qkv.narrow(1, 0, heads).view(-1, kv_heads, heads // kv_heads, qkv.shape[-1])
            attended = F.scaled_dot_product_attention(queries, keys[layer], values[layer], scale=size**-0.5)
            return attended[..., :size].reshape(-1, heads * size)

        inputs = self.small_to_mtp_projection(embedding)
        return self.model.run(inputs, slice(position, position + 1), attend)
