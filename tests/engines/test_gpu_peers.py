"""The benchmark of other services: all get the same requests."""

import pickle

from gpu import peers


def test_all_services_get_the_same_requests() -> None:
    def essence(name: str) -> list[tuple[object, ...]]:
        script = pickle.loads(pickle.dumps(peers.script_of(name, ("ryan", "vivian"), fixed_lengths=True)))
        fields = ("input", "voice", "seed", "max_new_tokens", "non_streaming_mode")
        return [tuple(script.body(number)[field] for field in fields) for number in range(100)]

    assert essence("syrinx") == essence("nari") == essence("vllm-omni") == essence("sglang-omni")
    assert {peer.name for peer in peers.PEERS} == {"nari", "vllm-omni", "sglang-omni"}
