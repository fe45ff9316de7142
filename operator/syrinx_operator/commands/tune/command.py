"""`syrinx tune`: prints, watches, or plots a pipeline's tuning."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.console import Console
from rich.live import Live
from rich.text import Text

from syrinx_operator.commands.tune.source import TuneError, gateway_load, read_view, running_pipeline
from syrinx_operator.commands.tune.view import View, changes, lines
from syrinx_operator.local import tuning_files
from syrinx_operator.local.console import make_console
from syrinx_operator.local.running import state_directory

REFRESH_SECONDS = 1.0


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
        _plot(name, namespace, audit, Path(plot), trial)
    elif watching:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(watch(lambda: read_view(name, namespace), make_console()))
    else:
        view = asyncio.run(read_view(name, namespace))
        if as_json:
            print(msgspec.json.format(msgspec.json.encode(view.state), indent=2).decode())
        else:
            make_console().print("\n".join(lines(view, datetime.now(UTC))), markup=False)


async def watch(read: Callable[[], Awaitable[View]], console: Console) -> None:
    """Shows a live view in a terminal, else one line per change. Raises TuneError if the first read fails."""
    live = Live(console=console, screen=True, auto_refresh=False)
    before, reported = None, ""
    try:
        async for view, problem in _views(read):
            if console.is_terminal:
                live.start()
                text = [*lines(view, datetime.now(UTC)), "", problem or await gateway_load(view.admin_url)]
                live.update(Text("\n".join(text), no_wrap=True, overflow="ellipsis"), refresh=True)
                continue
            for line in changes(before, view):
                console.print(f"{datetime.now().astimezone():%H:%M:%S}  {line}", markup=False)
            if problem and problem != reported:
                console.print(problem, markup=False)
            before, reported = view, problem
    finally:
        live.stop()


async def _views(read: Callable[[], Awaitable[View]]) -> AsyncIterator[tuple[View, str]]:
    """Yields the last state, and why it could not be read again, which may be temporary."""
    view, problem = await read(), ""
    while True:
        yield view, problem
        await asyncio.sleep(REFRESH_SECONDS)
        try:
            view, problem = await read(), ""
        except TuneError as error:
            problem = str(error)


def _plot(name: str | None, namespace: str | None, log: str | None, file: Path, trial: int | None) -> None:
    """Plots the audit log of a pipeline. That of a stopped local pipeline is still readable."""
    from syrinx_operator.commands.tune.plot import plot, read_audit  # Importing matplotlib takes half a second.

    files: Sequence[Path | None]
    if log is not None:
        pipeline = name if namespace is None or name is None else f"{namespace}/{name}"
        files = [None if log == "-" else Path(log)]
    elif namespace is not None:
        raise TuneError(
            "on Kubernetes the audit log is in the operator's log: kubectl logs deploy/syrinx-operator > log, "
            "then --audit log"
        )
    else:
        pipeline, directory = None, state_directory(os.environ) / (name or running_pipeline(None).name)
        files = tuning_files.audit_files(directory)
    entries = read_audit(files, pipeline)
    plot(entries, file, trial)
    print(f"{file}: {len(entries)} log entries", file=sys.stderr)
