"""Sends the requests of clients that no registry has, and checks what those clients check. Argument: which client."""

import json
import sys
import urllib.request

from report import BASE_URL, TEXT, Report

STREAM = {"model": "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice", "input": TEXT, "stream": True, "response_format": "pcm"}
BENCH = STREAM | {"voice": "Ryan", "language": "English", "non_streaming_mode": False}
PCM, WAV = {"content-type": "audio/pcm"}, {"content-type": "audio/wav"}
RATE = {"x-sample-rate": "24000"}
REQUESTS = {
    "tts-bench": {
        "target vllm-omni": (BENCH | {"stream_format": "audio"}, PCM),
        "target sglang-omni": (BENCH, PCM | RATE),
        "targets voxserve and nari": (BENCH, PCM),
        "target mstar": (BENCH | {"response_format": "wav"}, WAV),
    },
    "vllm-bench": {
        "backend openai-audio-speech": (STREAM, PCM),
    },
}
"""By client and case: the fields of the request, and the headers that the client wants."""


def main(client: str) -> None:
    report = Report()
    if client == "tts-bench":
        urllib.request.urlopen(f"{BASE_URL}/health").close()
    for name, (fields, headers) in REQUESTS[client].items():
        with report.case(name) as case:
            request = urllib.request.Request(
                f"{BASE_URL}/v1/audio/speech", json.dumps(fields).encode(), {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request) as response:
                wrong = {key: response.headers[key] for key, value in headers.items() if response.headers[key] != value}
                assert not wrong, f"{wrong} instead of {headers}"
                audio = b""
                while piece := response.read1():
                    case.hear()
                    audio += piece
            raw = fields["response_format"] == "pcm"
            case.save(audio, fields["response_format"], 24_000 if raw else None)
    report.write()


main(sys.argv[1])
