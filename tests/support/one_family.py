"""A network whose only address is 127.0.0.1 or ::1: a network namespace of its own, in which a program runs."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from support.waiting import DEADLINE

ADDRESSES = {"IPv4": "127.0.0.1", "IPv6": "::1"}
_GET_FLAGS, _SET_FLAGS, _SET_ADDRESS, _UP = 0x8913, 0x8914, 0x8916, 0x1
_SETTINGS = Path("/proc/sys/net/ipv6/conf")
_COMMAND = ("unshare", "--map-root-user", "--net")


def run_alone(family: str, module: str, *arguments: str) -> None:
    """Runs a module in a network with one family, and fails with its output if it fails. Skips without namespaces."""
    if not (shutil.which("unshare") and subprocess.run([*_COMMAND, "true"], capture_output=True).returncode == 0):
        pytest.skip("this machine has no network namespaces for its users")
    if family == "IPv6" and not _SETTINGS.exists():
        pytest.skip("this machine has no ::1")
    command = [*_COMMAND, sys.executable, "-m", module, family, *arguments]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=3 * DEADLINE, env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def keep_only(family: str) -> None:
    """Gives loopback the only address of a family. Called by the program in the namespace."""
    if family == "IPv4":
        for each in ("all", "default", "lo"):
            (_SETTINGS / each / "disable_ipv6").write_text("1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        name = b"lo".ljust(16, b"\0")
        (flags,) = struct.unpack_from("H", fcntl.ioctl(control, _GET_FLAGS, name + bytes(24)), 16)
        fcntl.ioctl(control, _SET_FLAGS, name + struct.pack("H", flags | _UP) + bytes(22))
        if family == "IPv6":
            fcntl.ioctl(control, _SET_ADDRESS, name + struct.pack("HH4s", socket.AF_INET, 0, bytes(4)) + bytes(16))
    other = next(address for each, address in ADDRESSES.items() if each != family)
    assert not _can_bind(other) and _can_bind(ADDRESSES[family]), f"loopback has not only {family}"


def _can_bind(address: str) -> bool:
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
