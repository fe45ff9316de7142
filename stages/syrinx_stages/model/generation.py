"""The defaults of a checkpoint's requests, from its `generation_config.json`. Imports no torch: the gateway uses it."""

from pathlib import Path
from typing import Annotated

from msgspec import Meta, structs

from syrinx_stages.contract.api import SamplingFields
from syrinx_stages.contract.messages import Sampling
from syrinx_stages.model.config import decode_file
from syrinx_stages.normalization.durations import Durations


class GenerationConfig(SamplingFields, frozen=True, kw_only=True):
    """`generation_config.json`: the request fields that it may set."""

    do_sample: bool | None = None
    """False means greedy: temperature 0."""
    subtalker_dosample: bool | None = None
    normalize: bool | None = None
    """Whether the model was trained on numbers, dates and the like as words."""
    single_sentences: bool | None = None
    """Whether the model was trained on single sentences, so that it may end a text after one of several."""
    segment_size: Annotated[int, Meta(ge=20, le=2_000)] | None = None
    """Letters of a text that are spoken at once, at most."""
    durations: Durations | None = None
    """How long the speech of a text is."""


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


def replace_fields(sampling: Sampling, fields: SamplingFields) -> Sampling:
    """Returns `sampling` with the values that `fields` sets."""
    given = {
        name: getattr(fields, name.replace("residual_", "subtalker_"), None) for name in Sampling.__struct_fields__
    }
    for name in ("top_k", "residual_top_k"):
        # No limit is -1 in other APIs, and 0 here.
        if given[name] == -1:
            given[name] = 0
    return structs.replace(sampling, **{name: value for name, value in given.items() if value is not None})
