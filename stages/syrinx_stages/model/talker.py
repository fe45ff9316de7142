"""The talker: draws code 0 of each frame, and holds everything that turns text and codes into its input."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .code_predictor import CodePredictor, Draw
from .config import TalkerConfig
from .kv_cache import KVCache
from .layers import DecoderStack, Linear
from .linear import pad_rows


class TextProjection(nn.Module):
    """Text embeddings to the talker's width."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.linear_fc1 = Linear(config.text_hidden_size, config.text_hidden_size, bias=True)
        self.linear_fc2 = Linear(config.text_hidden_size, config.hidden_size, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, text_hidden_size] to [rows, hidden_size]."""
        result: Tensor = self.linear_fc2(F.silu(self.linear_fc1(x)))
        return result


class Embedding(nn.Module):
    """A lookup table whose memory is not initialised (torch's own draws random numbers first)."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, width))

    def forward(self, ids: Tensor) -> Tensor:
        """Ids [...] to [..., width]."""
        return F.embedding(ids, self.weight)


class TalkerModel(DecoderStack):
    """The decoder stack and the embeddings, under their official names."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__(config, positions=config.max_position_embeddings)
        self.codec_embedding = Embedding(config.vocab_size, config.hidden_size)
        self.text_embedding = Embedding(config.text_vocab_size, config.text_hidden_size)


class Talker(nn.Module):
    """Qwen3-TTS's talker with its code predictor. Use it under `torch.inference_mode()`.

    On a CPU, on one thread, every row of `decode`, `logits`, `predict` and `embed_frame` is bit-identical whatever the
    other rows are.
    """

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.config = config
        self.model = TalkerModel(config)
        self.text_projection: nn.Module = TextProjection(config)
        """Replaced where the embeddings are projected already."""
        self.codec_head = Linear(config.hidden_size, config.vocab_size)
        self.code_predictor = CodePredictor(config.code_predictor_config, config.hidden_size)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.codec_embedding.weight.device

    def new_cache(self) -> KVCache:
        """An empty cache for one request."""
        config = self.config
        weight = self.codec_head.weight
        return KVCache(
            config.num_hidden_layers,
            config.num_key_value_heads,
            config.head_size,
            limit=config.max_position_embeddings,
            dtype=weight.dtype,
            device=weight.device,
        )

    def embed_text(self, ids: Tensor) -> Tensor:
        """Text token ids [count] to talker inputs [count, hidden_size]."""
        result: Tensor = self.text_projection(self.model.text_embedding(ids))
        return result

    def embed_codec(self, ids: Tensor) -> Tensor:
        """Ids of the talker's own vocabulary (code 0, marks, speakers, languages) [count] to [count, hidden_size]."""
        result: Tensor = self.model.codec_embedding(ids)
        return result

    def embed_frame(self, codes: Tensor) -> Tensor:
        """Frames of codes [rows, 16] to the sum of their embeddings [rows, hidden_size]."""
        return self.embed_codec(codes[:, 0]) + self.code_predictor.model.embeddings.sum(codes[:, 1:])

    def prefill(self, embeds: Tensor, cache: KVCache) -> Tensor:
        """Fills an empty cache with a prompt [length, hidden_size]; returns the last position's state [hidden_size].

        Raises ValueError if the cache is not empty or the prompt is longer than the model's positions.
        """
        if cache.length:
            raise ValueError("prefill needs an empty cache")
        length = embeds.shape[0]
        cache.extend(length)
        config = self.config
        heads, repeats = config.num_attention_heads, config.num_attention_heads // config.num_key_value_heads

        def attend(layer: int, qkv: Tensor) -> Tensor:
            keys, values = cache.write(layer, qkv[:, heads:].transpose(0, 1), 0, length)
            queries = qkv[:, :heads].transpose(0, 1)[None]
            keys, values = (kept.repeat_interleave(repeats, 1) for kept in (keys, values))
            attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
            return attended[0].transpose(0, 1).flatten(1)

        return self.model.run(embeds, slice(0, length), attend)[-1]

    def decode(self, embeds: Tensor, caches: Sequence[KVCache]) -> Tensor:
        """Appends one position to each request: inputs [rows, hidden_size] to states of the same shape.

        Raises ValueError if a request is at the model's last position; no cache is changed then.
        """
        rows = len(caches)
        for cache in caches:
            cache.check_room(1)
        positions = [cache.length for cache in caches]
        for cache in caches:
            cache.extend(1)
        config = self.config
        heads, kv_heads, size = config.num_attention_heads, config.num_key_value_heads, config.head_size
        grouped = (1, kv_heads, heads // kv_heads, size)

        def attend(layer: int, qkv: Tensor) -> Tensor:
            attended = []
            for row, (cache, position) in enumerate(zip(caches, positions, strict=True)):
                keys, values = cache.write(layer, qkv[row, heads:, None], position, position + 1)
                # The queries that share a key head are that head's query positions: no key is repeated.
                queries = qkv[row, :heads].view(grouped)
                attended.append(F.scaled_dot_product_attention(queries, keys, values).view(1, heads * size))
            return pad_rows(torch.cat(attended))

        padded = pad_rows(embeds)
        index = torch.tensor(positions + [0] * (len(padded) - rows), device=embeds.device)
        return self.model.run(padded, index, attend)[:rows]

    def logits(self, hidden: Tensor) -> Tensor:
        """States [rows, hidden_size] to logits [rows, vocab_size] over code 0, EOS and the ids sampling suppresses."""
        result: Tensor = self.codec_head(hidden)
        return result

    def predict(self, hidden: Tensor, code0: Tensor, draw: Draw) -> Tensor:
        """The whole frame [rows, 16] for states [rows, hidden_size] and their code 0 [rows].

        `draw(logits, group)` chooses codes 1 to 15 in turn; every code is below `config.codebook_size`.
        """
        return self.code_predictor.generate(hidden, code0, self.embed_codec(code0), draw)
