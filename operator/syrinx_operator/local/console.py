"""Shows what happens to a local pipeline: live on a terminal, plain lines elsewhere."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.style import Style

from syrinx_operator.local.events import Event, Exited, Log, Ready, Starting, Stopped, Stopping, Told, exit_words

_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


def make_console(*, stderr: bool = False) -> Console:
    """A console that never breaks a line by itself, and is plain text where there is no terminal."""
    return Console(stderr=stderr, highlight=False, soft_wrap=True)


class PipelineView:
    """Shows people a clear line per step, a spinner per process while models load, and logs with their source."""

    def __init__(self, console: Console, *, logs: bool) -> None:
        """`logs` shows what the stages write, too."""
        self._console = console
        self._logs = logs
        self._loading: dict[str, TaskID] = {}
        self._colours: dict[str, str] = {}
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
        """Shows one event."""
        match event:
            case Starting(name=name):
                self._loading[name] = self._progress.add_task(f"{self._label(name)} loading")
                if not self._console.is_terminal:
                    self._say(name, "starting")
            case Ready(name=name, url=url, seconds=seconds):
                self._loaded(name)
                self._say(name, f"ready after {seconds:.1f} s at {url}")
            case Exited(name=name, code=code, restart_in=pause):
                self._loaded(name)
                when = "now" if pause == 0 else f"in {pause:g} s"
                self._say(name, f"died ({exit_words(code)}); starting it again {when}", "bold red")
            case Stopping(name=name):
                self._loaded(name)
                self._say(name, "finishing its work")
            case Stopped(name=name, code=code, seconds=seconds):
                self._say(name, f"stopped after {seconds:.1f} s" + (f" ({exit_words(code)})" if code else ""))
            case Told(message=message, warning=warning):
                self._say("tuner", message, "bold yellow" if warning else "bold")
            case Log(name=name, line=line) if self._logs:
                self._say(name, line, "dim")

    def _loaded(self, name: str) -> None:
        if (task := self._loading.pop(name, None)) is not None:
            self._progress.remove_task(task)

    def _say(self, name: str, text: str, style: str = "") -> None:
        self._console.print(f"{self._label(name)} {escape(text)}", style=Style.parse(style) if style else None)

    def _label(self, name: str) -> str:
        colour = self._colours.setdefault(name, _COLOURS[len(self._colours) % len(_COLOURS)])
        return f"[{colour}]{escape(name):<10}[/{colour}]"
