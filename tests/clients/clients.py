"""The clients that are tried, and how."""

import os

from msgspec import Struct

from clients.environments import Debian, Environment, Node, Project, Python

UNMODIFIED, REPLAYED = "unmodified program", "its requests, replayed"
ADAPTER = "with the adapter of `examples/agents`"
TTS_BENCH = os.environ.get("SYRINX_TEST_TTS_BENCH")
"""A checkout of Nari's tts-bench, the folder with its pyproject.toml: no registry has it."""


class Client(Struct, frozen=True):
    """A client, and the driver that starts it."""

    name: str
    driver: str
    environment: Environment
    mode: str = UNMODIFIED


def clients() -> list[Client]:
    """The clients that use the HTTP API, in the order of the table."""
    return [
        Client("openai (Python)", "openai_python", Python("openai", "openai")),
        Client("openai (JavaScript)", "openai_node", Node("openai-node", "openai")),
        Client("AI SDK (`ai` with `@ai-sdk/openai`)", "ai_sdk", Node("ai-sdk", "ai")),
        Client("LiveKit Agents, OpenAI plugin", "livekit_agents", Python("livekit", "livekit-plugins-openai")),
        Client("Pipecat, `OpenAITTSService`", "pipecat_ai", Python("pipecat", "pipecat-ai")),
        Client("Open WebUI, the server", "open_webui", Python("open-webui", "open-webui")),
        Client(
            "wyoming_openai, for Home Assistant",
            "wyoming_server",
            Python("wyoming-openai", "wyoming_openai", minimum=(3, 12)),
        ),
        Client(
            "vllm-omni, example clients of Qwen3-TTS",
            "vllm_omni",
            # Of later versions PyPI has no source distribution, which has the examples.
            Python("vllm-omni", None, source="vllm-omni==0.20.0"),
        ),
        Client(
            "vllm-omni, `vllm bench serve --omni`",
            "replay",
            Project("0.20.0", "vllm-bench"),
            REPLAYED,
        ),
        _tts_bench(),
        Client("Python's audio readers", "readers", Python("readers", None)),
        Client("curl", "programs", Debian("curl", ("curl",))),
        Client("FFmpeg", "programs", Debian("ffmpeg", ("ffmpeg",), version_option="-version")),
        Client("SoX", "programs", Debian("sox", ("sox", "libsox-fmt-mp3"))),
        Client("mpv", "programs", Debian("mpv", ("mpv",))),
        Client("Chromium", "chromium", Debian("chromium", ("chromium",))),
    ]


def agents() -> list[Client]:
    """The frameworks for voice agents, with adapters for text that streams in."""
    return [
        Client("LiveKit Agents, text as it is written", "livekit_syrinx", Python("livekit", "livekit-agents"), ADAPTER),
        Client("Pipecat, text as it is written", "pipecat_syrinx", Python("pipecat", "pipecat-ai"), ADAPTER),
    ]


def _tts_bench() -> Client:
    name = "tts-bench (Nari)"
    if TTS_BENCH is None:
        return Client(name, "replay", Project("0.1.0", "tts-bench"), REPLAYED)
    return Client(name, "tts_bench", Python("tts-bench", None, minimum=(3, 12)))
