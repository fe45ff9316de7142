"""vllm-omni's example clients of Qwen3-TTS, from its source distribution."""

import subprocess
import sys
import wave
from pathlib import Path

from report import BASE_URL, OUT, TEXT, Report

TEXTS = TEXT.split(". ")
EXAMPLES = "source/*/examples/online_serving/text_to_speech/qwen3_tts"


def main() -> None:
    (examples,) = Path(sys.prefix).glob(EXAMPLES)
    report = Report()
    for name in ("wav", "mp3", "flac", "pcm", "aac", "opus"):
        with report.case(f"openai_speech_client.py, {name}") as case:
            options = ["--api-base", BASE_URL, "--response-format", name, "--output", f"{OUT}/speech"]
            run(examples / "openai_speech_client.py", "--text", TEXT, *options)
            case.save((OUT / "speech").read_bytes(), name, 24_000 if name == "pcm" else None)
    with report.case("batch_speech_client.py") as case:
        options = ["--api-base", BASE_URL, "--output-dir", f"{OUT}/batch"]
        run(examples / "batch_speech_client.py", *options, "--texts", *TEXTS)
        case.save(b"".join(samples(OUT / "batch" / f"batch_{index}.wav") for index in range(len(TEXTS))), "pcm", 24_000)
    report.write()


def samples(file: Path) -> bytes:
    with wave.open(str(file)) as wav:
        return wav.readframes(wav.getnframes())


def run(script: Path, *arguments: str) -> None:
    done = subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "Error" not in done.stdout, done.stdout + done.stderr


main()
