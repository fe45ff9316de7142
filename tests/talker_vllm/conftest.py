"""vLLM's environment, before it is imported: little memory, no network."""

import os

os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="ERROR")
