"""vLLM's plugin entry point `vllm.general_plugins`, loaded in each of its processes.

This package uses the following API of vLLM:

- `ModelRegistry.register_model` by name: vLLM imports the model on demand.
- For the model: `Qwen3Model` with `load_weights` and `embed_input_ids`; the protocol `SupportsMRoPE`; `compute_logits`
  receives rows of what `forward` returned; of `VllmConfig`: `additional_config`, `model_config.hf_config` and `.dtype`,
  `device_config.device_type`, `scheduler_config.max_num_seqs` and `.max_num_batched_tokens`.
- For the worker: `worker_extension_cls`, and the worker's `get_model`.
- For the engine: `EngineArgs`; `LLMEngine` with `from_engine_args`, `add_request`, `abort_request`, `step`,
  `has_unfinished_requests` and `collective_rpc`; `SamplingParams`; `RequestOutputKind`; of a `RequestOutput`:
  `request_id` and the first output's `token_ids` and `finish_reason`.

Tested with vLLM 0.32.0 on CPUs, and with 0.20.2 on CPUs and on an H200 with both of its model runners.
"""


def register() -> None:
    """Registers the model with vLLM."""
    from vllm import ModelRegistry

    from syrinx_stages.talker_vllm.model_directory import ARCHITECTURE

    ModelRegistry.register_model(ARCHITECTURE, "syrinx_stages.talker_vllm.model:SyrinxTalker")
