"""Nari's tts-bench, from a checkout of github.com/nari-labs/benchmarks: one run for each kind of server it knows."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

from report import BASE_URL, OUT, TEXT, Report

TARGETS = ("vllm-omni", "sglang-omni", "voxserve", "mstar", "nari")
SEED = 5
"""Of the request over WebSocket: a request with the whole text makes the same audio."""
SENTENCE = TEXT.partition(". ")[0] + "."
"""A request with the whole text divides several."""
LOAD = "--rps 1 --warmup 0s --duration 1s --arrival constant"


def main() -> None:
    checkout = Path(os.environ["SYRINX_TEST_TTS_BENCH"])
    environment = os.environ | {"PYTHONPATH": str(checkout / "src")}
    (OUT / "prompts.jsonl").write_text(json.dumps({"id": "1", "text": TEXT}))
    report = Report()

    def run(target: str, name: str, *options: str) -> bytes:
        command = [sys.executable, "-m", "tts_bench", "run", "--target", target, "--base-url", BASE_URL, *options]
        command += ["--dataset", str(OUT / "prompts.jsonl"), "--output", str(OUT / name)]
        done = subprocess.run([*command, *LOAD.split()], env=environment, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
        (file,) = (OUT / name / "audio" / "wav" / "measurement").iterdir()
        return file.read_bytes()

    for target in TARGETS:
        with report.case(f"target {target}") as case:
            case.save(run(target, target), "wav")
    (OUT / "prompts.jsonl").write_text(json.dumps({"id": "1", "text": SENTENCE}))
    with report.case("target nari, transport websocket") as case:
        fields = {"voice": "vivian", "language": "English"}
        case.fields = {"input": SENTENCE, "seed": SEED, "non_streaming_mode": False, **fields}
        options = [text for name, value in fields.items() for text in (f"--{name}", value)]
        options += ["--transport", "websocket", "--request-param", f"seed={SEED}"]
        case.save(run("nari", "websocket", *options), "wav")
    report.write(version=tomllib.loads((checkout / "pyproject.toml").read_text())["project"]["version"])


main()
