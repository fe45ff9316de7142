"""The benchmark of other services: their request schemas, and that all get the same requests."""

import pickle
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from gpu import peers

COMMON: Mapping[str, Any] = {
    "input": str, "voice": str, "response_format": str, "stream": bool, "seed": int, "max_new_tokens": int
}  # fmt: skip
DECLARED: Mapping[str, Mapping[str, Any]] = {
    "nari": {**COMMON, "non_streaming_mode": bool},
    "vllm-omni": {**COMMON, "non_streaming_mode": bool, "stream_format": str},
    # It does not declare non_streaming_mode, and ignores it.
    "sglang-omni": {**COMMON, "non_streaming_mode": bool},
}
"""The fields of the requests that each service's public code declares, see `gpu.peers`."""


def declared(name: str) -> type[msgspec.Struct]:
    return msgspec.defstruct("Request", list(DECLARED[name].items()), forbid_unknown_fields=True)


@pytest.mark.parametrize("name", DECLARED)
def test_requests_have_only_fields_that_a_service_declares(name: str) -> None:
    script = peers.script_of(name, ("ryan", "vivian"), fixed_lengths=True)
    for number in range(200):
        body = script.body(number)
        msgspec.convert(body, declared(name), strict=True)
        assert body["response_format"] == "pcm" and body["stream"] is True
        assert 1 <= body["max_new_tokens"] <= 32 * 1024 and body["seed"] >= 0


def test_all_services_get_the_same_requests() -> None:
    def essence(name: str) -> list[tuple[object, ...]]:
        script = pickle.loads(pickle.dumps(peers.script_of(name, ("ryan", "vivian"), fixed_lengths=True)))
        fields = ("input", "voice", "seed", "max_new_tokens", "non_streaming_mode")
        return [tuple(script.body(number)[field] for field in fields) for number in range(100)]

    assert essence("syrinx") == essence("nari") == essence("vllm-omni") == essence("sglang-omni")
    assert {peer.name for peer in peers.PEERS} == set(DECLARED)
