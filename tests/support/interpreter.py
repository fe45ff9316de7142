"""Runs Triton's kernels in its CPU interpreter. Import this before any module with kernels.

The interpreter keeps a scalar as an array of one element, which NumPy no longer converts to an index: this is mended.
The rest makes it several times as quick and changes no result: the language's functions are replaced once and not at
every call, equal types are one object, what needs no conversion skips it, and integers are not checked for overflow.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import cache
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

from triton.language import core
from triton.runtime import interpreter

Tensors = tuple[core.tensor, core.tensor]

_patch_tensor = interpreter._patch_lang_tensor
_patch_language = interpreter._patch_lang
_semantic = interpreter.interpreter_semantic
_convert = _semantic.binary_op_type_checking_impl
_broadcast = _semantic.broadcast_impl_value
_init_block_type = core.block_type.__init__
_block_types: dict[tuple[core.dtype, tuple[int, ...]], core.block_type] = {}
_patched: set[int] = set()


class _NoRestore:
    """Leaves the functions replaced: nothing else in a test process uses the language."""

    def restore(self) -> None:
        """Does nothing."""


def _patch_lang(fn: Any) -> _NoRestore:
    module = id(fn.__globals__)
    if module not in _patched:
        _patched.add(module)
        _patch_language(fn)
        core.dtype.to_ir = _to_ir
    return _NoRestore()


def _patch_lang_tensor(tensor: Any, scope: Any) -> None:
    _patch_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


def _patch_attr(target: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
    function = getattr(member, "__wrapped__", member)

    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs["_semantic"] = _semantic
        return function(*args, **kwargs)

    scope.set_attr(target, name, call)


def _new_block_type(cls: type, element_ty: core.dtype, shape: Any) -> core.block_type:
    sizes = tuple(size.value if isinstance(size, core.constexpr) else size for size in shape)
    known = _block_types.get((element_ty, sizes))
    if known is None:
        known = _block_types[element_ty, sizes] = object.__new__(cls)
        _init_block_type(known, element_ty, list(sizes))
        known.of_tensor = _shape_and_size(sizes)
    return known


@cache
def _shape_and_size(sizes: Sequence[int]) -> tuple[core.tuple, core.constexpr]:
    return core.tuple([core.constexpr(size) for size in sizes]), core.constexpr(math.prod(sizes))


def _init_tensor(self: core.tensor, handle: Any, type: core.dtype) -> None:
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.shape, self.numel = type.of_tensor if type.is_block() else _shape_and_size(())


def _convert_operands(
    lhs: Any,
    rhs: Any,
    allow_lhs_ptr: bool = False,
    allow_rhs_ptr: bool = False,
    arithmetic_check: bool = True,
    div_or_mod: bool = False,
) -> Tensors:
    same = isinstance(lhs, core.tensor) and isinstance(rhs, core.tensor) and lhs.type is rhs.type
    if same and not div_or_mod:
        return lhs, rhs
    return _convert(lhs, rhs, allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod)


def _broadcast_operands(lhs: core.tensor, rhs: core.tensor) -> Tensors:
    return (lhs, rhs) if lhs.shape is rhs.shape else _broadcast(lhs, rhs)


def _equal(self: core.dtype, other: object) -> bool:
    return self is other or (isinstance(other, core.dtype) and self.name == other.name)


def _to_ir(self: core.dtype, builder: Any) -> core.dtype:
    return self


interpreter._patch_lang_tensor = _patch_lang_tensor
interpreter._patch_attr = _patch_attr
interpreter._patch_lang = _patch_lang
interpreter._get_np_dtype = cache(interpreter._get_np_dtype)
interpreter.TensorHandle.__post_init__ = lambda self: None
_semantic.builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
_semantic.binary_op_type_checking_impl = _convert_operands
_semantic.broadcast_impl_value = _broadcast_operands
for _type in (core.dtype, core.pointer_type, core.block_type):
    _type.__eq__, _type.__hash__, _type.to_ir = _equal, lambda self: hash(self.name), _to_ir
core.block_type.__new__ = _new_block_type
core.block_type.__init__ = lambda self, element_ty, shape: None
core.block_type.with_element_ty = cache(core.block_type.with_element_ty)
core.tensor.__init__ = _init_tensor
