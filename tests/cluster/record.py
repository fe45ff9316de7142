"""The record of runs on a cluster: what passed on which version of Kubernetes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def record(file: Path, run: dict[str, Any]) -> None:
    """Adds a run to a file: at its top level is the last run, and `runs` are all of its revision."""
    earlier = json.loads(file.read_text())["runs"] if file.exists() else []
    runs = [*(each for each in earlier if each["revision"] == run["revision"]), run]
    file.write_text(json.dumps({**run, "runs": runs}, indent=1) + "\n")
