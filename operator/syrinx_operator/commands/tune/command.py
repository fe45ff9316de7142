"""`syrinx tune`: selects the source and the output."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from syrinx_operator.commands.tune.audit import AuditEntry, read_audit
from syrinx_operator.commands.tune.source import Local, Source, TuneError, running_pipeline
from syrinx_operator.commands.tune.view import lines
from syrinx_operator.commands.tune.watch import watch
from syrinx_operator.local import tuning_files
from syrinx_operator.local.console import make_console
from syrinx_operator.local.running import state_directory


def tune(
    name: str | None,
    namespace: str | None,
    *,
    watching: bool,
    as_json: bool,
    plot: str | None,
    trial: int | None,
    audit: str | None,
) -> None:
    """Prints, plots, or watches until Ctrl-C. Raises TuneError or ReportError."""
    if plot is None and (trial is not None or audit is not None):
        raise TuneError("--trial and --audit require --plot FILE.png")
    if plot is not None:
        _plot(_audit(name, namespace, audit), Path(plot), trial)
        return
    source = _source(name, namespace)
    if watching:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(watch(source, make_console()))
        return
    view = asyncio.run(source.view())
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(view.state), indent=2).decode())
    else:
        make_console().print("\n".join(lines(view, datetime.now(UTC))), markup=False)


def _source(name: str | None, namespace: str | None) -> Source:
    if namespace is None:
        return Local(name)
    if name is None:
        raise TuneError(f"name a pipeline of namespace {namespace}; `kubectl get ttsp -n {namespace}` lists them")
    try:
        from syrinx_operator.commands.tune.cluster import Cluster  # Imported late: only the operator extra installs it.
    except ImportError:
        raise TuneError(
            "reading a cluster needs the operator extra: pip install -e '.[operator]' in the Syrinx checkout"
        ) from None
    return Cluster(namespace, name)


def _audit(name: str | None, namespace: str | None, file: str | None) -> list[AuditEntry]:
    """Returns the audit log of a pipeline. The log of a stopped local pipeline is still readable."""
    pipeline = name if namespace is None or name is None else f"{namespace}/{name}"
    if file is not None:
        return read_audit([None if file == "-" else Path(file)], pipeline)
    if namespace is not None:
        raise TuneError(
            "on Kubernetes the audit log is in the operator's log: kubectl logs deploy/syrinx-operator > log, "
            "then --audit log"
        )
    directory = state_directory(os.environ) / (name or running_pipeline(None).name)
    return read_audit(tuning_files.audit_files(directory), None)


def _plot(entries: list[AuditEntry], file: Path, trial: int | None) -> None:
    from syrinx_operator.commands.tune.plot import plot  # Imported late: matplotlib takes half a second to import.

    plot(entries, file, trial)
    print(f"{file}: {len(entries)} log entries", file=sys.stderr)
