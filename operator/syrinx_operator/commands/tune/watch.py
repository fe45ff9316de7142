"""`syrinx tune --watch`: redrawn in a terminal; elsewhere, a line for each change."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from rich.console import Console
from rich.live import Live
from rich.text import Text

from syrinx_operator.commands.tune.source import Source, TuneError
from syrinx_operator.commands.tune.view import View, changes, lines

SECONDS = 1.0
"""Between two looks."""


async def watch(source: Source, console: Console) -> None:
    """Shows a pipeline's tuning until it is cancelled. Raises `TuneError` if there is nothing to show to begin with."""
    view = await source.view()
    if console.is_terminal:
        await _redraw(source, view, console)
    else:
        await _tell(source, view, console)


async def _redraw(source: Source, view: View, console: Console) -> None:
    with Live(console=console, screen=True, auto_refresh=False) as live:
        trouble = ""
        while True:
            text = [*lines(view, datetime.now(UTC)), "", trouble or await source.load()]
            live.update(Text("\n".join(text), no_wrap=True, overflow="ellipsis"), refresh=True)
            await asyncio.sleep(SECONDS)
            try:
                view, trouble = await source.view(), ""
            except TuneError as error:  # It may come back.
                trouble = str(error)


async def _tell(source: Source, view: View, console: Console) -> None:
    before: View | None = None
    trouble = ""
    while True:
        for line in changes(before, view):
            console.print(f"{datetime.now().astimezone():%H:%M:%S}  {line}", markup=False)
        before = view
        await asyncio.sleep(SECONDS)
        try:
            view, trouble = await source.view(), ""
        except TuneError as error:
            if str(error) != trouble:
                trouble = str(error)
                console.print(trouble, markup=False)
