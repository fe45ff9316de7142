"""Prints the events of a local pipeline."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.style import Style

from syrinx_operator.local.events import Event, Exited, Log, Notice, Ready, Starting, Stopped, Stopping, describe_exit

_COLORS = ("cyan", "magenta", "green", "yellow", "blue", "red")


def make_console(*, stderr: bool = False) -> Console:
    """Returns a console that does not wrap lines and writes plain text if it is not a terminal."""
    return Console(stderr=stderr, highlight=False, soft_wrap=True)


class PipelineView:
    """Prints a line for each event, a spinner for each loading process, and prefixed logs."""

    def __init__(self, console: Console, *, logs: bool) -> None:
        """`logs`: also print the output of the stages."""
        self._console = console
        self._logs = logs
        self._loading: dict[str, TaskID] = {}
        self._colors: dict[str, str] = {}
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def __call__(self, event: Event) -> None:
        """Prints one event."""
        match event:
            case Starting(name=name):
                self._loading[name] = self._progress.add_task(f"{self._label(name)} loading")
                if not self._console.is_terminal:
                    self._print(name, "starting")
            case Ready(name=name, url=url, seconds=seconds):
                self._loaded(name)
                self._print(name, f"ready after {seconds:.1f} s at {url}")
            case Exited(name=name, code=code, restart_in=pause):
                self._loaded(name)
                when = "now" if pause == 0 else f"in {pause:g} s"
                self._print(name, f"exited unexpectedly ({describe_exit(code)}); restarting {when}", "bold red")
            case Stopping(name=name):
                self._loaded(name)
                self._print(name, "draining")
            case Stopped(name=name, code=code, seconds=seconds):
                self._print(name, f"stopped after {seconds:.1f} s" + (f" ({describe_exit(code)})" if code else ""))
            case Notice(message=message, warning=warning):
                self._print("tuner", message, "bold yellow" if warning else "bold")
            case Log(name=name, line=line) if self._logs:
                self._print(name, line, "dim")

    def _loaded(self, name: str) -> None:
        if (task := self._loading.pop(name, None)) is not None:
            self._progress.remove_task(task)

    def _print(self, name: str, text: str, style: str = "") -> None:
        self._console.print(f"{self._label(name)} {escape(text)}", style=Style.parse(style) if style else None)

    def _label(self, name: str) -> str:
        color = self._colors.setdefault(name, _COLORS[len(self._colors) % len(_COLORS)])
        return f"[{color}]{escape(name):<10}[/{color}]"
