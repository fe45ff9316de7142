"""Runs Triton's kernels in its CPU interpreter. Import this before any module with kernels.

Patches two things. The interpreter keeps a scalar as an array of one element, which NumPy no longer converts to an
index. And it replaces the language's functions at every call of every kernel: here they are replaced once, which saves
a third of the time.
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


class _NoRestore:
    """Leaves the functions replaced."""

    def restore(self) -> None:
        """Does nothing: nothing else in a test process uses the language."""


_replace = interpreter._patch_lang
_replaced: set[int] = set()


def _patch_lang(fn: Any) -> _NoRestore:
    module = fn.__globals__
    if id(module) not in _replaced:
        _replaced.add(id(module))
        _replace(fn)
    return _NoRestore()


interpreter._patch_lang_tensor = _patch_lang_tensor
interpreter._patch_lang = _patch_lang
