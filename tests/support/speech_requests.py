"""Parses requests for speech, as a gateway of the official checkpoints does."""

import json
from typing import Any

import msgspec
import pytest

from syrinx_stages.contract.messages import TaskType
from syrinx_stages.contract.settings import ApiConfig
from syrinx_stages.gateway.errors import ApiError
from syrinx_stages.gateway.fields.parse import parse_fields
from syrinx_stages.gateway.speech.request import ParsedRequest, parse_request
from syrinx_stages.gateway.voices.catalog import Catalog
from syrinx_stages.gateway.voices.voices import KeptVoice
from syrinx_stages.model.describe import Description

CUSTOM = Description(
    task_type=TaskType.CUSTOM_VOICE, size="1b7", voices=("vivian", "ryan"), languages=("auto", "english", "chinese"),
    supports_instructions=True, max_positions=32_768,
)  # fmt: skip
DESIGN = msgspec.structs.replace(CUSTOM, task_type=TaskType.VOICE_DESIGN, voices=())
BASE = msgspec.structs.replace(CUSTOM, task_type=TaskType.BASE, voices=(), supports_instructions=False)
DEFAULTS = ApiConfig()


def parsed_json(
    body: str | bytes, checkpoint: Description = CUSTOM, api: ApiConfig = DEFAULTS, kept: KeptVoice | None = None
) -> ParsedRequest:
    """Returns the request with this body."""
    raw = body if isinstance(body, bytes) else body.encode()
    sent = parse_fields(raw)
    with sent.naming():
        parsed = parse_request(sent.fields, Catalog(checkpoint, "qwen3-tts", api), "id", 1.5, kept=kept)
    parsed.warnings.extend(sent.warnings)
    return parsed


def parsed(
    checkpoint: Description = CUSTOM, api: ApiConfig = DEFAULTS, kept: KeptVoice | None = None, **fields: Any
) -> ParsedRequest:
    """Returns the request with these fields."""
    return parsed_json(json.dumps({"input": "Hello.", **fields}), checkpoint, api, kept)


def refused(checkpoint: Description = CUSTOM, api: ApiConfig = DEFAULTS, **fields: Any) -> ApiError:
    """Returns the error that these fields get."""
    with pytest.raises(ApiError) as caught:
        parsed(checkpoint, api, **fields)
    return caught.value
