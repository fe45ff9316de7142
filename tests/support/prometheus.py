"""A real Prometheus with generated samples or scraping targets, and its recorded responses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from support.required import require
from support.stage_metrics import Gateway, Worker
from syrinx_operator.cluster.objects.clock import Now, utc_now
from syrinx_operator.cluster.objects.kinds import Kind
from syrinx_operator.cluster.objects.state import Manifest, Owner
from syrinx_operator.cluster.runners.prometheus_reader import PrometheusReader
from syrinx_operator.cluster.runners.tuning import MetricsReader
from syrinx_operator.cluster.watch.prometheus import CLOCK_QUERY, counters_query
from syrinx_operator.cluster.watch.prometheus_access import DEFAULT_ACCESS, Access, GetObject
from syrinx_stages.processes import die_with_parent

OWNER = Owner("demo", "voices", "u-1", generation=1)
ANSWERS = Path(__file__).parents[1] / "fixtures" / "prometheus" / "answers.json"
"""Responses of Prometheus 2.42 for `history` by query, and their time. Run this file to record them."""
START_SECONDS = 60.0
FETCHED = Path(sys.prefix) / "prometheus" / "prometheus"
"""Where `make test` installs Prometheus."""


async def no_object(kind: Kind, namespace: str, name: str) -> Manifest:
    """Fails the test if the reader asks for a Secret."""
    raise AssertionError(f"{kind.kind} {namespace}/{name} is not needed")


def metrics_reader(
    access: Access = DEFAULT_ACCESS, clock: Now = utc_now, get: GetObject = no_object, secret_seconds: float = 300.0
) -> MetricsReader:
    """Returns a reader of metrics whose `get` returns the Secrets of pipelines."""
    return MetricsReader(PrometheusReader(get, access, secret_seconds, clock), clock)


def find_prometheus() -> str:
    """Returns the path of `prometheus` from PROMETHEUS, PATH or `make test`. A test fails if it has no `promtool`."""
    program = os.environ.get("PROMETHEUS") or shutil.which("prometheus") or shutil.which(FETCHED) or ""
    require(program and promtool(program).exists(), "there is no prometheus with its promtool: make .venv/.prometheus")
    return program


def promtool(program: str) -> Path:
    """Returns the path of promtool, which checks and tests rules and writes samples."""
    return Path(program).parent / "promtool"


def history(until: float) -> str:
    """Returns ten minutes of scrapes, every 15 s, as OpenMetrics with timestamps.

    In the last five minutes two jobs scrape one gateway, one gateway restarts, one is removed,
    a talker and a codec work, and there are other pipelines and namespaces.
    """
    talker, codec = Worker("demo-talker-0", "talker"), Worker("demo-codec-0", "codec")
    busy, restarting, removed = (Gateway(f"demo-gateway-5f7c9-{suffix}") for suffix in ("bbbbb", "ccccc", "ddddd"))
    stranger, namesake = Gateway("demo-gateway-b-gateway-5f7c9-fffff"), Gateway("demo-gateway-5f7c9-bbbbb")
    busy.serve(*[9.0] * 40, underruns=9)
    restarting.serve(*[9.0] * 50)
    lines: list[str] = []
    for step in range(40, -1, -1):
        match step:
            case 14:
                busy.serve(*[0.06] * 10, underruns=1)
                busy.settle(accepted=12, well=9, interrupted=1, refused=2)
                busy.settle(arm="t1", accepted=4, late=3)
                stranger.serve(*[9.0] * 7)
                namesake.serve(*[9.0] * 7)
            case 12:
                busy.serve(*[0.25] * 9)
                busy.serve(0.4, task_type="Base")
                busy.live(2)
            case 10:
                restarting.restart()
                restarting.serve(*[0.06] * 5)
                restarting.settle(accepted=5, well=5)
                removed.serve(20.0)
                talker.steps(4, 0.02, 0.03)
                codec.calls(2, 8, "padded", 0.05)
        at = until - 15 * step
        lines += _scraped(busy, at, job="pods") + _scraped(busy, at - 2, job="podmonitor", endpoint="admin")
        lines += _scraped(restarting, at) + _scraped(stranger, at) + _scraped(namesake, at, namespace="others")
        lines += _scraped(removed, at) if step > 6 else []
        lines += _scraped(talker, at) + _scraped(codec, at)
    return "\n".join([*lines, "# EOF", ""])


def _scraped(gateway: Gateway | Worker, at: float, **labels: str) -> list[str]:
    """Returns all samples of one scrape with the labels that Prometheus adds."""
    added = {"namespace": "voices", "pod": gateway.replica.name, "pipeline": "whatever", "job": "pods", **labels}
    text = ",".join(f'{name}="{value}"' for name, value in added.items())
    lines = []
    for line in gateway.text.splitlines():
        if line.startswith("#"):
            continue
        series, _, value = line.rpartition(" ")
        name, _, own = series.partition("{")
        lines.append(f"{name}{{{own[:-1] + ',' if own else ''}{text}}} {value} {at:.3f}")
    return lines


@contextlib.asynccontextmanager
async def running(program: str, text: str) -> AsyncIterator[str]:
    """Yields the URL of a Prometheus with these samples; it scrapes nothing."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "history.txt").write_text(text)
        made = [promtool(program), "tsdb", "create-blocks-from", "openmetrics", "history.txt", "data"]
        await asyncio.to_thread(
            subprocess.run, made, cwd=directory, check=True, capture_output=True, timeout=START_SECONDS
        )
        async with _serving(program, directory, {"scrape_configs": []}) as url:
            yield url


@contextlib.asynccontextmanager
async def scraping(program: str, targets: Mapping[str, Mapping[str, str]], rules: Any = None) -> AsyncIterator[str]:
    """Yields the URL of a Prometheus that scrapes `targets` (host:port and additional labels) every second.

    `rules`, as in a PrometheusRule's spec, are evaluated every second too.
    """
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        static = [{"targets": [address], "labels": dict(labels)} for address, labels in targets.items()]
        (directory / "rules.yml").write_text(json.dumps(rules or {"groups": []}))
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "scrape_configs": [{"job_name": "pods", "static_configs": static}],
            "rule_files": [str(directory / "rules.yml")],
        }
        async with _serving(program, directory, config) as url:
            yield url


@contextlib.asynccontextmanager
async def _serving(program: str, directory: Path, config: Any) -> AsyncIterator[str]:
    # JSON is YAML.
    (directory / "prometheus.yml").write_text(json.dumps(config))
    options = {
        "config.file": directory / "prometheus.yml",
        "storage.tsdb.path": directory / "data",
        "web.listen-address": "127.0.0.1:0",
    }
    arguments = [program, *(f"--{option}={value}" for option, value in options.items())]
    with (directory / "log").open("wb") as log:
        # Dies with this process, however that ends.
        process = await asyncio.create_subprocess_exec(
            sys.executable, die_with_parent.__file__, str(os.getpid()), *arguments, stdout=log, stderr=log
        )
    try:
        yield await _url_when_ready(process, directory / "log")
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _url_when_ready(process: asyncio.subprocess.Process, log: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    async with httpx.AsyncClient(trust_env=False) as client:
        while time.monotonic() < deadline and process.returncode is None:
            listening = re.search(r'msg="Listening on" address=(\S+)', await asyncio.to_thread(log.read_text))
            with contextlib.suppress(httpx.HTTPError):
                if listening and (await client.get(f"http://{listening[1]}/-/ready")).status_code == 200:
                    return f"http://{listening[1]}"
            await asyncio.sleep(0.05)
    words = await asyncio.to_thread(log.read_text)
    raise TimeoutError(f"prometheus is not ready:\n{words[-2000:]}")


def recorded() -> dict[str, Any]:
    """What `ANSWERS` says to each query, as if it were asked now."""
    known = json.loads(ANSWERS.read_text())
    later = time.time() - known["at"]
    for query, answer in known["answers"].items():
        for one in answer["data"]["result"]:
            if query == CLOCK_QUERY:
                one["value"][1] = str(float(one["value"][1]) + later)
            for sample in one.get("values", ()):
                sample[0] = round(sample[0] + later, 3)
    return known["answers"]


async def _record() -> None:
    """Records the responses of a real Prometheus to the operator's queries."""
    program = find_prometheus()
    until = time.time()
    async with running(program, history(until)) as url, httpx.AsyncClient(trust_env=False) as client:
        answers = {}
        for query in (CLOCK_QUERY, counters_query(OWNER, 300)):
            answer = await client.get(f"{url}/api/v1/query", params={"query": query, "time": f"{until:.3f}"})
            answers[query] = answer.raise_for_status().json()
    ANSWERS.parent.mkdir(parents=True, exist_ok=True)
    ANSWERS.write_text(json.dumps({"at": until, "answers": answers}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    asyncio.run(_record())
