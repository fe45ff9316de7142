"""The defaults of a checkpoint's requests, from its `generation_config.json`. Imports no torch: the gateway uses it."""

from pathlib import Path

from msgspec import Struct, structs

from ..contract.api import MaxNewTokens, RepetitionPenalty, SpeechFields, Temperature, TopK, TopP
from ..contract.messages import Sampling
from .config import decode_file


class GenerationConfig(Struct, frozen=True, kw_only=True):
    """`generation_config.json`: the request fields that it may set. A null field counts as absent."""

    max_new_tokens: MaxNewTokens | None = None
    temperature: Temperature | None = None
    top_k: TopK | None = None
    top_p: TopP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    subtalker_temperature: Temperature | None = None
    subtalker_top_k: TopK | None = None
    subtalker_top_p: TopP | None = None
    do_sample: bool | None = None
    """False means greedy: temperature 0."""
    subtalker_dosample: bool | None = None


def read_generation_config(directory: Path) -> GenerationConfig:
    """Reads `generation_config.json`, which may be missing. Raises `CheckpointError` naming file and field."""
    path = directory / "generation_config.json"
    return decode_file(path, GenerationConfig) if path.exists() else GenerationConfig()


def default_sampling(config: GenerationConfig) -> Sampling:
    """Returns the sampling parameters of a request that sets none."""
    sampling = replace_fields(Sampling(), config)
    if config.do_sample is False:
        sampling = structs.replace(sampling, temperature=0.0)
    if config.subtalker_dosample is False:
        sampling = structs.replace(sampling, residual_temperature=0.0)
    return sampling


def replace_fields(sampling: Sampling, fields: SpeechFields | GenerationConfig) -> Sampling:
    """Returns `sampling` with the values that `fields` sets."""
    given = {
        name: getattr(fields, name.replace("residual_", "subtalker_"), None) for name in Sampling.__struct_fields__
    }
    return structs.replace(sampling, **{name: value for name, value in given.items() if value is not None})
