"""What vLLM finds by its entry point `vllm.general_plugins`, in every process of it.

All that is used of vLLM, here and in its neighbours:

- `ModelRegistry.register_model`, by name: vLLM imports the model when it wants it;
- for the model: `Qwen3Model` with its `load_weights` and `embed_input_ids`; the protocol `SupportsMRoPE`; that scores
  are asked for rows of what `forward` returned; of `VllmConfig`, `additional_config`, `model_config.hf_config` and
  `.dtype`, `device_config.device_type`, `scheduler_config.max_num_seqs` and `.max_num_batched_tokens`;
- for the worker: `worker_extension_cls`, and the worker's `get_model`;
- for the engine: `EngineArgs`, `LLMEngine` (`from_engine_args`, `add_request`, `abort_request`, `step`,
  `has_unfinished_requests`, `collective_rpc`), `SamplingParams`, `RequestOutputKind`; of a `RequestOutput`,
  `request_id` and its first output's `token_ids` and `finish_reason`.

Tried with vLLM 0.20.2 on an H200, by both of its model runners, and on CPUs; with 0.32.0 on CPUs, where it is tested.
"""

from __future__ import annotations


def register() -> None:
    """Tells vLLM of the model."""
    from vllm import ModelRegistry

    from syrinx_stages.talker.on_vllm.directory import ARCHITECTURE

    ModelRegistry.register_model(ARCHITECTURE, "syrinx_stages.talker.on_vllm.model:SyrinxTalker")
