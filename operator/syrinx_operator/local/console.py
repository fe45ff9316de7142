"""Prints the events of a local pipeline."""

import json
import logging
import os
import sys
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.style import Style

from syrinx_operator.local.events import Event
from syrinx_operator.resource.stage_config import LocalError
from syrinx_stages.contract.logs import configure

log = logging.getLogger("syrinx.up")

_COLORS = ("cyan", "magenta", "green", "yellow", "blue", "red")
_STYLES = {"exited": "bold red", "log": "dim", "notice": "bold", "warning": "bold yellow"}


def make_console(*, stderr: bool = False) -> Console:
    """Returns a console that does not wrap lines and writes plain text if it is not a terminal."""
    return Console(stderr=stderr, highlight=False, soft_wrap=True)


class PipelineView(Progress):
    """Prints a line for each event, a spinner for each loading process, and prefixed logs. A context manager."""

    def __init__(self, console: Console, *, logs: bool) -> None:
        """`logs`: also print the output of the stages."""
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        super().__init__(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._logs = logs
        self._loading: dict[str, TaskID] = {}
        self._colors: dict[str, str] = {}

    def __call__(self, event: Event) -> None:
        """Prints one event."""
        if event.kind == "starting":
            self._loading[event.name] = self.add_task(f"{self._label(event.name)} loading")
        elif event.kind in ("ready", "exited", "stopping") and event.name in self._loading:
            self.remove_task(self._loading.pop(event.name))
        if (event.kind == "log" and not self._logs) or (event.kind == "starting" and self.console.is_terminal):
            return
        style = Style.parse(_STYLES.get(event.kind, "none"))
        self.console.print(f"{self._label(event.name)} {escape(event.text)}", style=style)

    def note(self, text: str, style: str | None = None) -> None:
        """Prints a line about the pipeline."""
        self.console.print(text, style=style, markup=False)

    def _label(self, name: str) -> str:
        color = self._colors.setdefault(name, _COLORS[len(self._colors) % len(_COLORS)])
        return f"[{color}]{escape(name):<10}[/{color}]"


class JsonView:
    """Logs each event, and the logs of the stages with the name of their replica. A context manager."""

    def __init__(self, *, logs: bool) -> None:
        """`logs`: also print the output of the stages. Raises `LocalError` for an invalid LOG_LEVEL."""
        try:
            configure(os.environ)
        except ValueError as error:
            raise LocalError(str(error)) from None
        # It logs every probe of a stage.
        logging.getLogger("httpx").setLevel(logging.WARNING)
        self._logs = logs

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __call__(self, event: Event) -> None:
        """Prints one event."""
        if event.kind == "log":
            if self._logs:
                print(json.dumps({**_record(event.text), "replica": event.name}), file=sys.stderr, flush=True)
            return
        level = logging.WARNING if event.kind in ("exited", "warning") else logging.INFO
        log.log(level, "%s", event.text, extra={"replica": event.name})

    def note(self, text: str, style: str | None = None) -> None:
        """Logs a line about the pipeline."""
        log.info("%s", text)


def _record(line: str) -> dict[str, object]:
    """Returns the fields of a log line, which a library may have written in another format."""
    try:
        fields = json.loads(line)
    except ValueError:
        fields = None
    return fields if isinstance(fields, dict) else {"message": line}
