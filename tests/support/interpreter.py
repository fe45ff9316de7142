"""Runs Triton's kernels on the CPU: import this before any module that has kernels.

The interpreter keeps a scalar as an array of one element, which NumPy no longer takes for a number by itself. And it
exchanges the language's functions at every call of every kernel: here they are exchanged once, which saves a third of
the time.
"""

from __future__ import annotations

import os
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

from triton.runtime import interpreter

_patch = interpreter._patch_lang_tensor


def _patch_lang_tensor(tensor: Any, scope: Any) -> None:
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


class _Kept:
    """Functions that stay exchanged."""

    def restore(self) -> None:
        """Nothing else in a test's process uses the language."""


_exchange = interpreter._patch_lang
_exchanged: set[int] = set()


def _patch_lang(fn: Any) -> _Kept:
    module = fn.__globals__
    if id(module) not in _exchanged:
        _exchanged.add(id(module))
        _exchange(fn)
    return _Kept()


interpreter._patch_lang_tensor = _patch_lang_tensor
interpreter._patch_lang = _patch_lang
