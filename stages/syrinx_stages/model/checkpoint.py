"""Reads a checkpoint directory in the official layout into modules. Only safetensors; nothing is downloaded.

Every tensor of a module must be in the file with the module's shape, and the file must have no other under the
module's prefix: a checkpoint that does not fit is refused by the tensor's name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from copy import copy
from pathlib import Path
from typing import TypeVar

import msgspec
import torch
from msgspec import structs
from safetensors import SafetensorError, safe_open
from torch import nn

from .codec_decoder import CodecDecoder
from .codec_encoder import CodecEncoder, load_codec_encoder
from .config import CheckpointError, read_file, read_model_config, read_speech_tokenizer_config
from .describe import checkpoint_directory
from .layers import slots
from .speaker_encoder import SpeakerEncoder
from .talker import Talker
from .tokenizer import Tokenizer, load_tokenizer

_Module = TypeVar("_Module", bound=nn.Module)

_LAYERS = "model.layers"
_PREDICTOR_LAYERS = "code_predictor.model.layers"


class Checkpoint:
    """A checkpoint whose configs are read and checked; each stage loads only the modules it runs."""

    def __init__(self, name: str, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32) -> None:
        """`name`: a directory, or `bundled`. Raises `CheckpointError` naming file and field."""
        self.directory = checkpoint_directory(name)
        self.device = torch.device(device)
        self.dtype = dtype
        self.config = read_model_config(self.directory)
        self.speech_tokenizer = read_speech_tokenizer_config(self.directory)
        codes, entries = self.config.talker_config.codebook_size, self.speech_tokenizer.decoder_config.codebook_size
        if codes != entries:
            path = self.directory / "speech_tokenizer" / "config.json"
            raise CheckpointError(
                f"{path}: decoder_config.codebook_size: {entries}, but the talker speaks {codes} codes"
            )

    def in_float32(self) -> Checkpoint:
        """The same, its modules in float32."""
        other = copy(self)
        other.dtype = torch.float32
        return other

    def load_tokenizer(self) -> Tokenizer:
        """The text tokenizer."""
        return load_tokenizer(self.directory, self.config)

    def load_talker(self) -> Talker:
        """Talker and code predictor."""
        return self._load(lambda: Talker(self.config.talker_config), self.directory, "talker")

    def load_talker_without(self, *parts: str) -> Talker:
        """The same without the modules of these names: it needs no memory for them, and cannot do what they are for."""
        config = self.config.talker_config
        predictor = config.code_predictor_config
        if _LAYERS in parts:
            config = structs.replace(config, num_hidden_layers=0)
        if _PREDICTOR_LAYERS in parts:
            config = structs.replace(config, code_predictor_config=structs.replace(predictor, num_hidden_layers=0))

        def make() -> Talker:
            talker = Talker(config)
            for part in set(parts) - {_LAYERS, _PREDICTOR_LAYERS}:
                parent, _, name = part.rpartition(".")
                setattr(talker.get_submodule(parent), name, nn.Identity())
            return talker

        return self._load(make, self.directory, "talker", parts)

    def load_codec_decoder(self) -> CodecDecoder:
        """Codes to audio."""
        decoder = self.speech_tokenizer.decoder_config
        return self._load(lambda: CodecDecoder(decoder), self.directory / "speech_tokenizer", "decoder")

    def load_speaker_encoder(self) -> SpeakerEncoder:
        """Reference audio to a speaker embedding; Base checkpoints alone have it."""
        return self._load(lambda: SpeakerEncoder(self.config.speaker_encoder_config), self.directory, "speaker_encoder")

    def load_codec_encoder(self) -> CodecEncoder:
        """Reference audio to codes; Base checkpoints alone need it. Raises ImportError without transformers."""
        directory = self.directory / "speech_tokenizer"
        return load_codec_encoder(directory, self.speech_tokenizer, self.device, self.dtype)

    def _load(self, make: Callable[[], _Module], directory: Path, prefix: str, without: Sequence[str] = ()) -> _Module:
        before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        try:
            with self.device:
                module = make()
        finally:
            torch.set_default_dtype(before)
        load_module(module, directory, prefix, without)
        return module.eval().requires_grad_(False)


def load_module(module: nn.Module, directory: Path, prefix: str, without: Sequence[str] = ()) -> None:
    """Fills a module with the tensors named `prefix.*` of `directory`, cast to the module's type.

    without: parts that the module lacks; their tensors, `prefix.part.*`, are left alone.
    Raises `CheckpointError` for a missing or unexpected tensor, a wrong shape or an unreadable file.
    """
    places = dict(slots(module, prefix))
    left = tuple(f"{prefix}.{part}." for part in without)
    files = {
        name: path
        for name, path in _tensor_files(directory).items()
        if name.startswith(f"{prefix}.") and not name.startswith(left)
    }
    if missing := places.keys() - files.keys():
        shape = places[first := min(missing)].shape
        raise CheckpointError(f"{directory}: tensor {first} {list(shape)} is missing ({len(missing)} in all)")
    if unexpected := files.keys() - places.keys():
        first = min(unexpected)
        raise CheckpointError(f"{files[first]}: tensor {first} is unexpected ({len(unexpected)} in all)")
    by_file = defaultdict(list)
    for name, path in files.items():
        by_file[path].append(name)
    for path, names in by_file.items():
        try:
            with safe_open(path, framework="pt") as tensors:
                for name in names:
                    found, expected = tuple(tensors.get_slice(name).get_shape()), places[name].shape
                    if found != expected:
                        raise CheckpointError(f"{path}: tensor {name} is {list(found)}, expected {list(expected)}")
                    with torch.no_grad():
                        places[name].target.copy_(tensors.get_tensor(name))
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: {error}") from None


def _tensor_files(directory: Path) -> dict[str, Path]:
    """Which file each tensor is in: from `model.safetensors`, or from the index of a sharded checkpoint."""
    index = directory / "model.safetensors.index.json"
    if index.exists():
        return _indexed_files(index)
    path = directory / "model.safetensors"
    try:
        with safe_open(path, framework="pt") as tensors:
            return dict.fromkeys(tensors.keys(), path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: {error}") from None


class _Index(msgspec.Struct):
    """The one field of a shard index that matters here."""

    weight_map: dict[str, str]


def _indexed_files(index: Path) -> dict[str, Path]:
    try:
        weight_map = msgspec.json.decode(read_file(index), type=_Index).weight_map
    except msgspec.DecodeError as error:
        raise CheckpointError(f"{index}: {error}") from None
    for name, file in weight_map.items():
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise CheckpointError(f"{index}: weight_map.{name}: {file!r} is not a .safetensors file beside the index")
    return {name: index.parent / file for name, file in weight_map.items()}
