"""Compiles Gluon kernels for sm_90 and runs the PTX on the CPU, because Gluon has no interpreter.

Without a GPU, only this proves that the Gluon kernels compute the right result, stay within their tensors, and read
nothing that the previous kernel may still write before `griddepcontrol.wait`. All threads of a program execute an
instruction before any executes the next; programs run one after the other. Only the instructions that these kernels
compile to are implemented (PTX ISA 8.7); others raise NotImplementedError.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray[Any, np.dtype[Any]]

TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.int32: "*i32"}
_NUMPY = {
    "b16": np.uint16, "u16": np.uint16, "b32": np.uint32, "u32": np.uint32, "s32": np.int32, "f32": np.float32,
    "b64": np.uint64, "u64": np.uint64, "s64": np.int64, "pred": np.bool_,
}  # fmt: skip
_COMPILE = """
import importlib, json, sys, triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource
for line in sys.stdin:
    module, name, signature, constants, options = json.loads(line)
    kernel = getattr(importlib.import_module(module), name)
    paths = {argument: (index,) for index, argument in enumerate(kernel.arg_names)}
    source = GluonASTSource(
        kernel, signature, {paths[argument]: value for argument, value in constants.items()},
        {paths[argument]: [["tt.divisibility", 16]] for argument, dtype in signature.items() if dtype[0] == "*"},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    print(json.dumps([compiled.asm["ptx"], compiled.metadata.shared]), flush=True)
"""


class Device:
    """Replaces `kernels.launch.launch`."""

    def __init__(self, *early: str) -> None:
        """early: names of the arguments that may be read before the previous kernel has ended."""
        self._early = early
        # In a separate process: with TRITON_INTERPRET set, Triton compiles nothing.
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        self._compiler = subprocess.Popen(
            [sys.executable, "-c", _COMPILE], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def close(self) -> None:
        """Stops the compiler process."""
        self._compiler.communicate()

    def launch(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        """Runs a kernel on CPU tensors."""
        values = dict(zip(kernel.arg_names, arguments, strict=False))
        values |= {name: value for name, value in options.items() if name in kernel.arg_names}
        signature, constants, passed = {}, {}, []
        for name in kernel.arg_names:
            value = values[name]
            if isinstance(value, Tensor):
                signature[name] = TYPES[value.dtype]
            elif name.islower() and value is not None:
                signature[name] = "i32" if isinstance(value, int) else "fp32"
            else:
                signature[name], constants[name] = "constexpr", value
                continue
            passed.append(value)
        request = kernel.fn.__module__, kernel.fn.__name__, signature, constants, {"num_warps": options["num_warps"]}
        assert self._compiler.stdin is not None and self._compiler.stdout is not None
        print(json.dumps(request), file=self._compiler.stdin, flush=True)
        ptx, shared = json.loads(self._compiler.stdout.readline())
        early = [values[name] for name in self._early]
        late = [values[name] for name, dtype in signature.items() if dtype[0] == "*" and name not in self._early]
        program = Program(ptx, passed, early, late, shared, 32 * options["num_warps"])
        for program_id in product(*(range(size) for size in reversed(grid))):
            program.run((*reversed(program_id), 0, 0))


class Program:
    """A compiled kernel and its memory."""

    def __init__(
        self, ptx: str, arguments: list[Any], early: list[Tensor], late: list[Tensor], shared: int, threads: int
    ) -> None:
        """early, late: tensors that may be accessed before `griddepcontrol.wait`, and only after it."""
        body = re.sub(r"//.*", "", ptx[ptx.index("{", ptx.index(".entry")) : ptx.rindex("ret;")])
        self._code: list[tuple[str, str, list[str]]] = []
        self._labels: dict[str, int] = {}
        for line in re.findall(r"[^;\n]+[:;]", body):
            text = line.strip(" \t{}")
            if text.endswith(":"):
                self._labels[text[:-1]] = len(self._code)
            elif text[0] != ".":
                guard, text = text[1:].split(maxsplit=1) if text[0] == "@" else ("", text)
                operation, *operands = text[:-1].split(maxsplit=1)
                self._code.append((guard, operation, _split(" ".join(operands))))
        self._arguments = arguments
        self._early, self._late = _regions(early), _regions(late)
        self._memory: list[tuple[int, Array]] = []
        """Memory that may be accessed now: address and bytes of each tensor."""
        self._shared = np.zeros(max(shared, 4), np.uint8)
        self._threads = threads
        self._registers: dict[str, Array] = {}

    def run(self, program_id: tuple[int, ...]) -> None:
        """Runs one program of the grid."""
        self._shared.fill(0xFF)
        self._memory = self._early
        self._registers = {"global_smem": np.zeros(self._threads, np.uint32)}
        self._registers["%tid.x"] = np.arange(self._threads, dtype=np.uint32)
        for axis, index in zip("xyz", program_id, strict=False):
            self._registers[f"%ctaid.{axis}"] = np.full(self._threads, index, np.uint32)
        pc = 0
        while pc < len(self._code):
            guard, operation, operands = self._code[pc]
            pc += 1
            active = np.ones(self._threads, np.bool_)
            if guard:
                active = self._registers[guard.lstrip("!")] ^ guard.startswith("!")
            if operation.startswith("bra"):
                assert active.all() or not active.any(), "all threads of a program take the same branch"
                pc = self._labels[operands[0]] if active.all() else pc
            else:
                self._execute(operation, operands, active)

    def _execute(self, operation: str, operands: list[str], active: Array) -> None:
        name, *details = operation.split(".")
        dtype = details[-1] if details else ""
        if operation == "griddepcontrol.wait":
            self._memory = self._early + self._late
        elif name in ("bar", "griddepcontrol"):
            pass
        elif name == "ld":
            self._load(details, operands, active)
        elif name == "st":
            self._store(details, operands, active)
        elif name == "atom":
            self._add_atomically(operands, active)
        elif name == "mma":
            self._multiply(operands)
        elif name == "mov" and operands[0][0] == "{":
            whole, parts = self._get(operands[1], dtype), operands[0].strip("{} ").split(",")
            for index, part in enumerate(parts):
                self._set(part.strip(), (whole >> np.uint32(16 * index)).astype(np.uint16), active)
        elif name == "mov" and operands[1][0] == "{":
            low, high = (self._get(part.strip(), "b16") for part in operands[1].strip("{} ").split(","))
            self._set(operands[0], low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16), active)
        elif name == "shfl":
            value = self._get(operands[1].split("|")[0], "b32")
            other = np.arange(self._threads) ^ int(operands[2], 0)
            self._set(operands[0].split("|")[0], value[other], active)
        elif name == "cvt":
            self._set(operands[0], self._converted(details, operands[1:]), active)
        elif name == "setp":
            self._set(operands[0], _COMPARE[details[0]](*(self._get(each, dtype) for each in operands[1:])), active)
        elif name in ("mul", "mad") and details[0] == "wide":
            wide = dtype.replace("32", "64")
            left, right = (self._get(each, dtype).astype(_NUMPY[wide]) for each in operands[1:3])
            result = left * right + (self._get(operands[3], wide) if name == "mad" else _NUMPY[wide](0))
            self._set(operands[0], result, active)
        else:
            dtypes = [dtype, dtype, "pred"] if name == "selp" else [dtype] * 3
            values = [self._get(each, of) for each, of in zip(operands[1:], dtypes, strict=False)]
            if name not in _COMPUTE:
                raise NotImplementedError(f"{operation} {operands}")
            with np.errstate(all="ignore"):
                self._set(operands[0], np.asarray(_COMPUTE[name](*values)), active)

    def _get(self, operand: str, dtype: str) -> Array:
        dtype = np.dtype(_NUMPY[dtype])
        if operand in self._registers:
            value = self._registers[operand]
            return value if value.dtype.itemsize != dtype.itemsize else value.view(dtype)
        if operand.startswith("0f"):
            return np.full(self._threads, int(operand[2:], 16), np.uint32).view(np.float32)
        return np.full(
            self._threads, int(operand.rstrip("U"), 0) & (1 << 8 * dtype.itemsize) - 1, f"u{dtype.itemsize}"
        ).view(dtype)

    def _set(self, register: str, value: Array, active: Array) -> None:
        if value.dtype != np.bool_:
            value = value.view(f"u{value.dtype.itemsize}")
        if not active.all() and register in self._registers:
            value = np.where(active, value, self._registers[register])
        self._registers[register] = value

    def _address(self, operand: str, dtype: str) -> Array:
        register, _, offset = operand.strip("[] ").partition("+")
        return self._get(register.strip(), dtype) + _NUMPY[dtype](int(offset or "0", 0))

    def _locate(self, operand: str, space: str, active: Array, size: int) -> tuple[Array, Array]:
        """Returns the addressed memory in units of `size` bytes, and each thread's index in it."""
        if space.startswith("shared"):
            memory, at = self._shared, self._address(operand, "b32").astype(np.int64)
        else:
            addresses = self._address(operand, "b64")
            if not active.any():
                return self._shared[:size].view(f"u{size}"), np.zeros(self._threads, np.int64)
            first = addresses[active][0]
            found = [each for each in self._memory if 0 <= int(first) - each[0] < len(each[1])]
            assert found, f"outside of all tensors, or too early: {operand}"
            base, memory = found[0]
            at = addresses.astype(np.int64) - base
        at = np.where(active, at, 0)
        assert (at >= 0).all() and (at < len(memory)).all() and not (at % size).any(), (
            f"outside of the tensor, or misaligned: {operand}"
        )
        return memory[: len(memory) // size * size].view(f"u{size}"), at // size

    def _load(self, details: list[str], operands: list[str], active: Array) -> None:
        size = np.dtype(_NUMPY[details[-1]]).itemsize
        if details[0] == "param":
            index = int(operands[1].strip("[]").rpartition("_")[2])
            # Triton appends scratch pointers of its own, which are null.
            value = self._arguments[index] if index < len(self._arguments) else 0
            number = value.data_ptr() if isinstance(value, Tensor) else value
            dtype = np.float32 if isinstance(number, float) else _NUMPY[details[-1]]
            self._set(operands[0], np.full(self._threads, number, dtype), active)
            return
        memory, at = self._locate(operands[1], details[0], active, size)
        for index, register in enumerate(_registers(operands[0])):
            self._set(register, memory[np.where(active, at + index, 0)], active)

    def _store(self, details: list[str], operands: list[str], active: Array) -> None:
        size = np.dtype(_NUMPY[details[-1]]).itemsize
        memory, at = self._locate(operands[0], details[0], active, size)
        for index, register in enumerate(_registers(operands[1])):
            memory[at[active] + index] = self._get(register, details[-1])[active]

    def _add_atomically(self, operands: list[str], active: Array) -> None:
        memory, at = self._locate(operands[1], "global", active, 4)
        assert active.sum() == 1, "one thread adds"
        before = memory[at[active]].copy()
        memory[at[active]] += self._get(operands[2], "b32")[active]
        self._set(operands[0], np.full(self._threads, before[0]), active)

    def _multiply(self, operands: list[str]) -> None:
        """Executes `mma.m16n8k16` of bfloat16; fragment layouts: PTX ISA, section 9.7.14.5.8."""
        a, b, c = ([self._get(each, "b32") for each in _registers(operand)] for operand in operands[1:])
        group, quarter = np.arange(32) // 4, np.arange(32) % 4
        results = [np.empty(self._threads, np.float32) for _ in range(4)]
        for start in range(0, self._threads, 32):
            warp = slice(start, start + 32)
            left, right = np.empty((16, 16), np.float32), np.empty((16, 8), np.float32)
            total = np.empty((16, 8), np.float32)
            for half in range(2):
                for index in range(4):
                    column = 2 * quarter + half + 8 * (index // 2)
                    left[group + 8 * (index % 2), column] = _half(a[index][warp], half)
                    total[group + 8 * (index // 2), 2 * quarter + index % 2] = c[index][warp].view(np.float32)
                for index in range(2):
                    right[2 * quarter + half + 8 * index, group] = _half(b[index][warp], half)
            total += left @ right
            for index in range(4):
                results[index][warp] = total[group + 8 * (index // 2), 2 * quarter + index % 2]
        for register, result in zip(_registers(operands[0]), results, strict=True):
            self._set(register, result, np.ones(self._threads, np.bool_))

    def _converted(self, details: list[str], operands: list[str]) -> Array:
        to, of = details[-2:]
        if to == "bf16x2":
            high, low = (_rounded(self._get(each, "f32")) for each in operands)
            return low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16)
        if (to, of) == ("bf16", "f32"):
            return _rounded(self._get(operands[0], "f32"))
        if (to, of) == ("f32", "bf16"):
            return self._get(operands[0], "b16").astype(np.uint32) << np.uint32(16)
        return self._get(operands[0], of).astype(_NUMPY[to])


def _split(operands: str) -> list[str]:
    """Returns the operands; those in braces or brackets are one."""
    return [each.strip() for each in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s{\[][^,]*", operands)]


def _registers(operand: str) -> list[str]:
    return [each.strip() for each in operand.strip("{} ").split(",")]


def _bytes(tensor: Tensor) -> Array:
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()  # type: ignore[call-overload,no-any-return]


def _regions(tensors: list[Tensor]) -> list[tuple[int, Array]]:
    """Returns the address and the bytes of each tensor's storage."""
    return [(tensor.untyped_storage().data_ptr(), _bytes(tensor)) for tensor in tensors]


def _half(register: Array, half: int) -> Array:
    return (register >> np.uint32(16 * half) << np.uint32(16)).view(np.float32)


def _rounded(value: Array) -> Array:
    """Returns the bits of float32 values rounded to bfloat16, ties to even."""
    return torch.from_numpy(value.copy()).bfloat16().view(torch.int16).numpy().view(np.uint16)


def _field(value: Array, start: Array, length: Array) -> Array:
    width = int(length[0])
    bits = value.astype(np.int64) >> start.astype(np.int64) & (1 << width) - 1
    if value.dtype == np.int32:
        bits -= (bits >> width - 1 & 1) << width
    return bits.astype(value.dtype)


_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less,
}  # fmt: skip
_COMPUTE: dict[str, Callable[..., Any]] = {
    "mov": lambda a: a, "add": np.add, "sub": np.subtract, "mul": np.multiply, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor, "shl": np.left_shift, "shr": np.right_shift, "neg": np.negative,
    "mad": lambda a, b, c: a * b + c, "fma": lambda a, b, c: a * b + c, "ex2": np.exp2, "div": np.divide,
    "rsqrt": lambda a: 1 / np.sqrt(a), "bfe": _field, "selp": lambda a, b, c: np.where(c, a, b), "max": np.fmax,
}  # fmt: skip
