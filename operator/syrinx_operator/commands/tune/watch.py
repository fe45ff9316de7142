"""`syrinx tune --watch`: a live view in a terminal, else one line per change."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from rich.console import Console
from rich.live import Live
from rich.text import Text

from syrinx_operator.commands.tune.source import Source, TuneError
from syrinx_operator.commands.tune.view import View, changes, lines

SECONDS = 1.0
"""Refresh interval."""


async def watch(source: Source, console: Console) -> None:
    """Shows a pipeline's tuning until it is cancelled. Raises TuneError if the first read fails."""
    view = await source.view()
    if console.is_terminal:
        await _live(source, view, console)
    else:
        await _print_changes(source, view, console)


async def _live(source: Source, view: View, console: Console) -> None:
    with Live(console=console, screen=True, auto_refresh=False) as live:
        problem = ""
        while True:
            text = [*lines(view, datetime.now(UTC)), "", problem or await source.load()]
            live.update(Text("\n".join(text), no_wrap=True, overflow="ellipsis"), refresh=True)
            await asyncio.sleep(SECONDS)
            try:
                view, problem = await source.view(), ""
            except TuneError as error:  # It may be temporary.
                problem = str(error)


async def _print_changes(source: Source, view: View, console: Console) -> None:
    before: View | None = None
    problem = ""
    while True:
        for line in changes(before, view):
            console.print(f"{datetime.now().astimezone():%H:%M:%S}  {line}", markup=False)
        before = view
        await asyncio.sleep(SECONDS)
        try:
            view, problem = await source.view(), ""
        except TuneError as error:
            if str(error) != problem:
                problem = str(error)
                console.print(problem, markup=False)
