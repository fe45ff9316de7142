"""What vLLM finds by its entry point `vllm.general_plugins`, in every process of it.

All that is used of vLLM, here and in its neighbours:

- `ModelRegistry.register_model`, by name: vLLM imports the model when it wants it;
- for the model: `Qwen3Model` with its `load_weights` and `embed_input_ids`; the protocol `SupportsMRoPE`; of
  `VllmConfig`, `additional_config` and `model_config.hf_config`;
- for the worker: `worker_extension_cls`, and the worker's `get_model`;
- for the engine: `EngineArgs`, `LLMEngine` (`from_engine_args`, `add_request`, `abort_request`, `step`,
  `has_unfinished_requests`, `collective_rpc`), `SamplingParams`, `RequestOutputKind`; of a `RequestOutput`,
  `request_id` and its first output's `token_ids` and `finish_reason`.

Tried on CPUs with vLLM 0.32.0, the release that is tested, and with 0.20.2, there with the worker in another process.
"""

from __future__ import annotations


def register() -> None:
    """Tells vLLM of the model."""
    from vllm import ModelRegistry

    from syrinx_stages.talker.on_vllm.directory import ARCHITECTURE

    ModelRegistry.register_model(ARCHITECTURE, "syrinx_stages.talker.on_vllm.model:SyrinxTalker")
