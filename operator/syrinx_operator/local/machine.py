"""Describes the machine of a measurement without host names and paths."""

import math
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct, structs

from syrinx_operator import __version__
from syrinx_operator.resource.checks.check import with_paths
from syrinx_operator.resource.fields.gateway import CorsSpec
from syrinx_operator.resource.spec import TTSPipeline

_PACKAGES = ("torch", "numpy", "hiredis", "fastapi", "uvicorn")


class Machine(Struct, frozen=True):
    """Hardware and software."""

    cpu: str
    cores: int
    """Number of cores that this process may use."""
    memory_gib: float
    system: str
    python: str
    packages: dict[str, str]


def describe() -> Machine:
    """Returns a description of this machine."""
    model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE)
    return Machine(
        cpu=model[1] if model else platform.machine(),
        cores=usable_cores(),
        memory_gib=round(memory_gib(), 1),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        packages={"syrinx": __version__, **{name: version(name) for name in _PACKAGES if find_spec(name)}},
    )


def usable_cores(quota_file: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Returns the number of cores that this process may use, by its affinity and its container's quota."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = quota_file.read_text("ascii").split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):
        # No cgroup, or no quota ("max").
        return cores


def memory_gib() -> float:
    """Returns the memory of the machine in GiB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def revision() -> str | None:
    """Returns the commit of the source tree, with `+changes` if it was edited; None without a repository."""
    try:
        commit = _git("rev-parse", "--short=12", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", ":/operator", ":/stages")
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + ("+changes" if changed else "")


def publishable_command(program: str, arguments: Sequence[str]) -> str:
    """Returns the command line of a program without absolute paths and hosts."""
    return " ".join([program, *(_publishable(argument) for argument in arguments)])


def publishable_pipeline(pipeline: TTSPipeline) -> TTSPipeline:
    """Returns the resource without absolute paths and hosts."""
    spec = with_paths(pipeline, _publishable).spec
    connector = spec.connector
    if connector.url is not None:
        connector = structs.replace(connector, url=_publishable(connector.url))
    voices = tuple(structs.replace(each, url=None) for each in spec.voices)
    hosts = {"reference_hosts": (), "trusted_proxies": (), "cors": CorsSpec()}
    gateway = structs.replace(spec.gateway, **hosts)
    return structs.replace(pipeline, spec=structs.replace(spec, connector=connector, voices=voices, gateway=gateway))


def _publishable(text: str) -> str:
    option, equals, value = text.partition("=") if text.startswith("--") else ("", "", text)
    if url := re.match(r"([a-z]+)://", value):
        value = f"{url[1]}://…"
    elif value.startswith(("/", "~")):
        value = f"…/{Path(value).name}"
    return option + equals + value


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
