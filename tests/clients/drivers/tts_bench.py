"""Nari's tts-bench, from a checkout of github.com/nari-labs/benchmarks: one run for each kind of server it knows."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

from report import BASE_URL, OUT, TEXT, Report

TARGETS = ("vllm-omni", "sglang-omni", "voxserve", "mstar", "nari")
LOAD = "--rps 1 --warmup 0s --duration 1s --arrival constant"


def main() -> None:
    checkout = Path(os.environ["SYRINX_TEST_TTS_BENCH"])
    environment = os.environ | {"PYTHONPATH": str(checkout / "src")}
    (OUT / "prompts.jsonl").write_text(json.dumps({"id": "1", "text": TEXT}))
    report = Report()
    for target in TARGETS:
        with report.case(f"target {target}") as case:
            command = [sys.executable, "-m", "tts_bench", "run", "--target", target, "--base-url", BASE_URL]
            command += ["--dataset", str(OUT / "prompts.jsonl"), "--output", str(OUT / target)]
            done = subprocess.run(
                [*command, *LOAD.split()], env=environment, capture_output=True, text=True, timeout=240
            )
            assert done.returncode == 0, done.stdout + done.stderr
            (file,) = (OUT / target / "audio" / "wav" / "measurement").iterdir()
            case.save(file.read_bytes(), "wav")
    report.write(version=tomllib.loads((checkout / "pyproject.toml").read_text())["project"]["version"])


main()
