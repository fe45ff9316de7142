"""Processes of a benchmark, which talk to it through a pipe."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


def start(run: Callable[..., None], *arguments: Any) -> Connection:
    """Runs a function with a connection as its last argument in a process of its own. Returns the other end.

    `recv` of either end raises EOFError if the other process dies.
    """
    parent, child = multiprocessing.Pipe()
    multiprocessing.get_context("spawn").Process(target=run, args=(*arguments, child), daemon=True).start()
    child.close()
    return parent
