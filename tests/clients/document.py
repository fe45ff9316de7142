"""docs/clients.md, written from the results of a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct, field

from clients.clients import Client, agents, clients

FILE = Path(__file__).parents[2] / "docs" / "clients.md"
HEAD = """# Clients

`make test-clients` wrote this page. It starts the bundled voice with `syrinx up` and lets each of these programs speak
with it, unmodified and with the settings that it has by default: only the address differs. Each has an environment of
its own, with the versions below. The names that clients of Qwen3-TTS send by default are
[aliases](api.md#names-and-aliases) here, as an operator would set them.

The last rows are frameworks for voice agents with the [adapters](api.md#voice-agents) for text that streams in. There
the audio must be, bit for bit, that of a request with the whole text.

The audio that a client returns must be what the gateway generates for the same request and seed. Where a client returns
audio as it arrives, its first audio must come before the last is generated.

| client | version | what was run | mode | result |
|---|---|---|---|---|
"""
NOTES = """
- **In no registry**: tts-bench is run from a checkout if `SYRINX_TEST_TTS_BENCH` names one. Otherwise its requests are
  replayed, as are those of `vllm bench serve --omni`, which needs vLLM for GPUs.
- **LangChain and LlamaIndex** have no text-to-speech with OpenAI's API. Their users call the `openai` package.
- **Home Assistant** speaks the Wyoming protocol with wyoming_openai, which lists OpenAI's voices. With
  `--tts-voices us us_f us_m gb` it lists the bundled ones.
- **Without `response_format`** a response is wav, as with vllm-omni, and not mp3, as with OpenAI. Open WebUI and the
  `openai` packages then store wav. Players and browsers recognize it, whatever the name of the file.
- **Browsers**: an `audio` element cannot send a POST request. It plays a Blob or a MediaSource that `fetch` fills.
- **Players**: the header of a streamed wav leaves its length open. Programs that show a duration without reading the
  file, like `soxi`, show a wrong one. With `"stream": false` the header has the length. SoX reads neither opus nor aac.
- **Voice agents**: see [which class to use](api.md#voice-agents).
- **Text over WebSocket**: `/v1/audio/speech/stream` has the [messages](api.md#text-that-streams-in) of vllm-omni's
  `streaming_speech_client.py` and of SGLang-Omni; `tests/pipeline/test_speech_socket.py` sends both.
  `/v1/audio/speech/ws` has [Nari's](api.md#naris-messages).
"""


class Row(Struct):
    """A client's result."""

    client: Client
    version: str = "unknown"
    cases: list[str] = field(default_factory=list)
    streamed: bool = False
    failure: str = ""

    @contextmanager
    def case(self, name: str) -> Iterator[None]:
        """Names what was run, and the case in its failure."""
        self.cases.append(name)
        try:
            yield
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error

    def __str__(self) -> str:
        works = "works; heard while it is generated" if self.streamed else "works"
        result = f"fails: {self.failure}" if self.failure else works
        cells = (self.client.name, self.version, "; ".join(self.cases), self.client.mode, result)
        return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |\n"


@contextmanager
def row_of(client: Client) -> Iterator[Row]:
    """Writes a client's row into the page. An exception is its failure."""
    row = Row(client)
    try:
        yield row
    except Exception as error:
        lines = (str(error).strip() or repr(error)).splitlines()
        # pytest explains an assertion behind its message; a driver's error is at the end of its output.
        row.failure = lines[0 if isinstance(error, AssertionError) else -1][:200]
        raise
    finally:
        rows = _rows() | {client.name: str(row)}
        named = [rows[each.name] for each in (*clients(), *agents()) if each.name in rows]
        FILE.write_text(HEAD + "".join(named) + NOTES)


def _rows() -> dict[str, str]:
    """The rows of the page as it is, by client: those that are not tried now stay."""
    lines = FILE.read_text().splitlines(keepends=True) if FILE.is_file() else []
    return {line.split(" | ")[0].removeprefix("| "): line for line in lines if line.startswith("| ")}
