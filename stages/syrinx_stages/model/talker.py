"""The talker: predicts code 0 of each frame and embeds text and codes."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from syrinx_stages.model.code_predictor import CodePredictor, SampleFn
from syrinx_stages.model.config import TalkerConfig
from syrinx_stages.model.layers import DecoderStack, Linear
from syrinx_stages.model.linear import pad_columns, pad_rows, padded_columns

_FIRST_CAPACITY = 128
"""Positions of a new cache: enough for a short prompt and the first seconds of speech."""


class TextProjection(nn.Module):
    """Projects text embeddings to the talker's width."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.linear_fc1 = Linear(config.text_hidden_size, config.text_hidden_size, bias=True)
        self.linear_fc2 = Linear(config.text_hidden_size, config.hidden_size, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_fc2(F.silu(self.linear_fc1(x)))


class Embedding(nn.Module):
    """An embedding table with uninitialized memory (`nn.Embedding` fills it with random numbers first)."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, width))

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight)


class TalkerModel(DecoderStack):
    """The decoder stack and the embeddings, with the checkpoint's names."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__(config, positions=config.max_position_embeddings)
        self.codec_embedding = Embedding(config.vocab_size, config.hidden_size)
        self.text_embedding = Embedding(config.text_vocab_size, config.text_hidden_size)


class KVCache:
    """A request's keys and values: [layers, 2, 1, kv_heads, capacity, head_size], grown by doubling up to `limit`."""

    def __init__(
        self, layers: int, kv_heads: int, head_size: int, *, limit: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.length = 0
        self._limit = limit
        shape = (layers, 2, 1, kv_heads, min(_FIRST_CAPACITY, limit), head_size)
        self._data = torch.empty(shape, dtype=dtype, device=device)
        self._layers = self._data.unbind()

    def extend(self, count: int) -> None:
        """Adds `count` positions, which the caller writes next; at most `limit` in total."""
        needed = self.length + count
        capacity = self._data.shape[4]
        if needed > capacity:
            while capacity < needed:
                capacity *= 2
            shape = list(self._data.shape)
            shape[4] = min(capacity, self._limit)
            grown = self._data.new_empty(shape)
            grown[..., : self.length, :] = self._data[..., : self.length, :]
            self._data, self._layers = grown, grown.unbind()
        self.length = needed

    def write(self, layer: int, heads: Tensor, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Stores keys and values `heads` [2 * kv_heads, end - start, head_size] at positions start to end.

        Returns the keys and the values up to `end`, each [1, kv_heads, end, head_size].
        """
        stored = self._layers[layer]
        stored[:, 0, :, start:end] = heads.view(2, -1, *heads.shape[1:])
        keys, values = stored[..., :end, :].unbind()
        return keys, values


class Talker(nn.Module):
    """The talker of Qwen3-TTS with its code predictor. Use it under `torch.inference_mode()`.

    On a CPU, on one thread, every row of `decode`, `logits`, `predict` and `embed_frame` is bit-identical for any
    other rows in the batch.
    """

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.config = config
        self.model = TalkerModel(config)
        self.text_projection: nn.Module = TextProjection(config)
        """An engine may replace it if it has projected the embeddings in advance."""
        self.codec_head = Linear(config.hidden_size, config.vocab_size)
        self.code_predictor = CodePredictor(config.code_predictor_config, config.hidden_size)

    @property
    def device(self) -> torch.device:
        return self.model.codec_embedding.weight.device

    def new_cache(self) -> KVCache:
        config = self.config
        weight = self.codec_head.weight
        return KVCache(
            config.num_hidden_layers, config.num_key_value_heads, padded_columns(config.head_size),
            limit=config.max_position_embeddings, dtype=weight.dtype, device=weight.device,
        )  # fmt: skip

    def embed_text(self, ids: Tensor) -> Tensor:
        """Maps text token ids [count] to talker inputs [count, hidden_size]."""
        return self.text_projection(self.model.text_embedding(ids))

    def embed_codec(self, ids: Tensor) -> Tensor:
        """Maps ids of the talker's vocabulary (code 0, control tokens, speakers, languages) [count] to embeddings."""
        return self.model.codec_embedding(ids)

    def embed_frame(self, codes: Tensor) -> Tensor:
        """Maps frames of codes [rows, 16] to the sums of their embeddings [rows, hidden_size]."""
        return self.embed_codec(codes[:, 0]) + self.code_predictor.model.embeddings.sum(codes[:, 1:])

    def prefill(self, embeds: Tensor, cache: KVCache) -> Tensor:
        """Fills an empty cache with a prompt [length, hidden_size] and returns the last hidden state [hidden_size]."""
        length = embeds.shape[0]
        cache.extend(length)
        config = self.config
        heads, repeats = config.num_attention_heads, config.num_attention_heads // config.num_key_value_heads
        size = config.head_size

        def attend(layer: int, qkv: Tensor) -> Tensor:
            qkv = pad_columns(qkv)
            keys, values = cache.write(layer, qkv[:, heads:].transpose(0, 1), 0, length)
            queries = qkv[:, :heads].transpose(0, 1)[None]
            keys, values = (each.repeat_interleave(repeats, 1) for each in (keys, values))
            attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, scale=size**-0.5)
            return attended[0, ..., :size].transpose(0, 1).flatten(1)

        return self.model.run(embeds, slice(0, length), attend)[-1]

    def decode(self, embeds: Tensor, caches: Sequence[KVCache]) -> Tensor:
        """Runs the next position of each cache: inputs [rows, hidden_size] to hidden states of the same shape.

        A cache that occurs several times gets as many positions, in the order of the rows.
        """
        rows, positions = len(caches), []
        for cache in caches:
            positions.append(cache.length)
            cache.extend(1)
        config = self.config
        heads, kv_heads, size = config.num_attention_heads, config.num_key_value_heads, config.head_size
        like = self.codec_head.operand
        grouped = (1, kv_heads, heads // kv_heads, padded_columns(size))

        def attend(layer: int, qkv: Tensor) -> Tensor:
            attended = []
            qkv = pad_columns(qkv)
            for row, (cache, position) in enumerate(zip(caches, positions, strict=True)):
                keys, values = cache.write(layer, qkv[row, heads:, None], position, position + 1)
                # Queries that share a key head are passed as its query positions, so that no key is repeated.
                queries = qkv[row, :heads].view(grouped)
                outputs = F.scaled_dot_product_attention(queries, keys, values, scale=size**-0.5)
                attended.append(outputs[..., :size].reshape(1, heads * size))
            return pad_rows(torch.cat(attended), like)

        padded = pad_rows(embeds, like)
        index = torch.tensor(positions + [0] * (len(padded) - rows), device=embeds.device)
        return self.model.run(padded, index, attend)[:rows]

    def logits(self, hidden: Tensor) -> Tensor:
        """Maps hidden states [rows, hidden_size] to logits [rows, vocab_size] of code 0 and the special ids."""
        return self.codec_head(hidden)

    def predict(self, hidden: Tensor, code0: Tensor, sample: SampleFn) -> Tensor:
        """Returns whole frames [rows, 16] for hidden states [rows, hidden_size] and code 0 [rows].

        A row with a negative code, sampled in place of one, has undefined codes after it; other rows do not change.
        """
        return self.code_predictor.generate(hidden, code0, self.embed_codec(code0.clamp(min=0)), sample)
