"""What a new process imports, and what it may not."""

import json
import re
import subprocess
import sys
from importlib.metadata import packages_distributions

import pytest

from support.charts import ROOT
from support.waiting import DEADLINE
from syrinx_operator.local.gpus import visible_gpus


def printed(program, **environment):
    """Returns what a Python program prints in a new process."""
    environment = {"PYTHONPATH": ":".join(sys.path), **environment}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize(
    ("use", "module"),
    [
        ("import syrinx_stages.families", "torch"),
        ("import syrinx_stages.gateway.http.api", "torch"),
        ("from syrinx_stages.model.describe import describe; assert 'us' in describe('bundled').voices", "torch"),
        ("import syrinx_stages.talker.service, syrinx_stages.codec.service", "triton"),
    ],
)
def test_torch_and_triton_are_not_imported_without_need(use, module):
    assert printed(f"import sys; {use}; print({module!r} in sys.modules)").stdout.strip() == "False"


def test_without_tracing_a_stage_imports_nothing_of_it():
    program = """
import sys
import syrinx_stages.gateway.http.api, syrinx_stages.talker.service, syrinx_stages.codec.service
from syrinx_stages.runtime.telemetry.tracing import open_tracer
assert open_tracer("gateway", "demo", "gateway-0", {}) is None
print(*sorted(name for name in sys.modules if name.startswith("opentelemetry.sdk") or name.endswith(".otel")))
"""
    assert printed(program).stdout.strip() == ""


def test_the_operator_imports_only_packages_of_its_image():
    lines = (ROOT / "docker" / "operator.txt").read_text().splitlines()
    there = {normal(line.split("==")[0]) for line in lines if not line.startswith("#")} | {"syrinx"}
    missing = [
        module
        for module, distributions in packages_distributions().items()
        if not there & {normal(distribution) for distribution in distributions}
    ]
    assert {"torch", "redis", "fastapi"} <= set(missing)
    program = f"""
import sys
for module in {missing!r}:
    sys.modules[module] = None  # makes every import of it fail
import syrinx_operator.main, syrinx_operator.cluster.watch.selftest
print(*(name for name in sys.modules if name.startswith("syrinx_stages.")))
"""
    names = printed(program, SYRINX_STAGES_IMAGE="stages:1").stdout.split()
    assert {name.split(".")[1] for name in names} == {"contract", "scheduling"}


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("format", ["json", "text"])
def test_a_process_logs_everything_in_its_format(format):
    """Also the records of other libraries, and warnings."""
    program = """
import logging, os, warnings
from syrinx_stages.contract import logs
logging.basicConfig(format="earlier %(message)s")
logs.configure(os.environ)
logging.getLogger("uvicorn.error").error("one")
warnings.warn("two\\nthree")
logging.getLogger("syrinx.tuning").info('{"time": 1}')
logging.debug("hidden")
"""
    lines = printed(program, LOG_FORMAT=format).stderr.splitlines()
    assert len(lines) == 3, lines
    if format == "json":
        assert [json.loads(line)["logger"] for line in lines] == ["uvicorn.error", "py.warnings", "syrinx.tuning"]
        assert json.loads(json.loads(lines[2])["message"]) == {"time": 1}
    else:
        assert lines[2].endswith(' INFO syrinx.tuning: {"time": 1}')


def test_the_stages_own_python_lists_the_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    visible_gpus.cache_clear()
    assert visible_gpus() == {}
    visible_gpus.cache_clear()
