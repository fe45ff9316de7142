"""The managed Redis: a real redis-server with the plan's arguments and ACL."""

import base64
import contextlib
import os
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path
from urllib.parse import quote

import pytest
from redis import Redis
from redis.exceptions import AuthenticationError, NoPermissionError, OutOfMemoryError

from support.cluster_plan import owner_of, pipeline, planned, pod_template
from support.stages import pipeline as running_pipeline
from support.stages import receive, request, submit, synthesize
from support.waiting import DEADLINE
from syrinx_operator.cluster.plan.connector.redis import password_secret
from syrinx_operator.resource.resolve import RedisForm
from syrinx_stages.connector.redis import scripts as redis_scripts
from syrinx_stages.connector.server import find_redis_server, free_port
from syrinx_stages.contract.keys import Keys
from syrinx_stages.contract.messages import EndReason

CONNECTOR = Path(redis_scripts.__file__).parents[1]
PASSWORD = 'with "quotes", spaces and ü'
KEYS = Keys(pipeline="demo", generation="1")


def secret():
    data = password_secret(owner_of(pipeline()), PASSWORD)["data"]
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


def arguments(folder, port, **connector):
    """Returns the plan's container arguments with this machine's port and directories."""
    subject = pipeline({"connector": {"managed": True, **connector}})
    template = pod_template(planned(subject), subject, RedisForm.SINGLE)
    (container,) = template["spec"]["containers"]
    mounts = {mount["mountPath"]: str(folder / mount["name"]) for mount in container["volumeMounts"]}
    local = {"6379": str(port)}
    for argument in container["args"]:
        for path, directory in mounts.items():
            if argument == path or argument.startswith(path + "/"):
                local[argument] = directory + argument.removeprefix(path)
    for directory in mounts.values():
        Path(directory).mkdir(exist_ok=True)
    return [local.get(argument, argument) for argument in container["args"]]


@contextlib.contextmanager
def running(folder, first_port=None, **connector):
    """Runs a redis-server with the plan's arguments and yields its port: the first one if it is free."""
    while True:
        # Redis cannot choose a port: another process may take this one first.
        port, first_port = first_port or free_port(), None
        command = [find_redis_server(), *arguments(folder, port, **connector)]
        (folder / "syrinx-acl" / "users.acl").write_text(secret()["users.acl"])
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        if accepts_connections(process, folder / "log"):
            break
    try:
        yield port
    finally:
        process.terminate()
        process.wait(DEADLINE)


def accepts_connections(process, log):
    """Waits until a server is ready. Returns False if its port was taken."""
    deadline = time.monotonic() + DEADLINE
    while "Ready to accept connections" not in (text := log.read_text()):
        if process.poll() is not None and "Address already in use" in text:
            return False
        assert process.poll() is None and time.monotonic() < deadline, text
        time.sleep(0.01)
    return True


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    with running(tmp_path_factory.mktemp("redis")) as port:
        yield port


def client(port, password=PASSWORD):
    return Redis(port=port, password=password, protocol=2)


def test_a_connection_requires_the_password(port):
    assert secret()["password"] == PASSWORD and PASSWORD not in secret()["users.acl"]
    assert client(port).ping()
    for wrong in (None, "guess"):
        with pytest.raises(AuthenticationError):
            client(port, wrong).ping()


def test_the_user_can_access_only_the_pipelines_keys(port):
    redis = client(port)
    redis.set("{demo:1:0}:x", "mine")
    for key in ("x", "{other:1:0}:x", "{demonstration:1:0}:x"):
        with pytest.raises(NoPermissionError):
            redis.set(key, "theirs")
        with pytest.raises(NoPermissionError):
            redis.eval("return redis.call('GET', KEYS[1])", 1, key)


ADMINISTRATION = """
    CONFIG GET maxmemory; CONFIG SET maxmemory 1; FLUSHALL; FLUSHDB; SWAPDB 0 1; KEYS *; ACL WHOAMI; ACL SETUSER x;
    SHUTDOWN; SAVE; BGSAVE; BGREWRITEAOF; REPLICAOF NO ONE; MONITOR; CLIENT KILL ID 1; CLIENT LIST; SLOWLOG GET;
    MODULE LIST; SCRIPT FLUSH; PUBLISH channel message; MIGRATE localhost 1 {demo:1:0}:x 0 1
"""


@pytest.mark.parametrize("command", [each.strip() for each in ADMINISTRATION.split(";")])
def test_the_user_cannot_administer_the_server(port, command):
    with pytest.raises(NoPermissionError):
        client(port).execute_command(*command.split())


def test_the_user_may_run_every_command_of_the_connector(port):
    """Redis checks permissions before it checks arguments."""
    rooms = (CONNECTOR / "redis", CONNECTOR / "servers")
    files = [path for room in rooms for kind in ("*.py", "*.lua") for path in room.rglob(kind)]
    source = "\n".join(path.read_text() for path in files)
    called = set(re.findall(r"redis\.p?call\('([A-Z]+)'(?:, '([A-Z]+)')?", source))
    called |= {(command, sub) for command, sub in re.findall(r'\(b"([A-Z]+)"(?:, b"([A-Z]+)")?', source)}
    commands = {command for command, _ in called}
    assert {"XADD", "XREADGROUP", "EVALSHA", "CLIENT", "GET"} <= commands and len(commands) > 15
    redis = client(port)
    for command, sub in called:
        try:
            redis.execute_command(command, *([sub] if sub and command in ("CLIENT", "XGROUP", "XINFO") else []))
        except NoPermissionError:
            raise
        except Exception:  # Of arguments that are missing: it was let through.
            redis = client(port)


def url(port):
    return f"redis://:{quote(PASSWORD)}@127.0.0.1:{port}/0"


async def test_a_request_completes_with_these_permissions(port):
    async with running_pipeline(0, 0, url=url(port)) as stages:
        stages.streams.keys = KEYS
        talker, _ = await stages.talker(), await stages.codec()
        await submit(stages.connector(), request("a"))
        await receive(stages.connector(), "a", until_frames=2)
        stages.workers.remove(talker)
        await talker.close()  # It hands its claim over.
        await stages.talker("talker-1")
        assert (await receive(stages.connector(), "a")).end.reason is EndReason.STOP
        assert (await synthesize(stages.connector(), request("b"), b"reference")).end.reason is EndReason.STOP


def test_streams_survive_a_restart_only_with_a_volume(tmp_path):
    for durable, connector in ((False, {}), (True, {"storage": {"size": "1Gi"}})):
        folder = tmp_path / str(durable)
        folder.mkdir()
        with running(folder, **connector) as port:
            client(port).xadd("{demo:1:0}:requests", {"d": "x"})
        with running(folder, **connector) as port:
            assert client(port).xlen("{demo:1:0}:requests") == durable


def test_writes_fail_beyond_three_quarters_of_the_memory_limit(tmp_path):
    with running(tmp_path, resources={"limits": {"memory": "8Mi"}}) as port:
        redis = client(port)
        with pytest.raises(OutOfMemoryError):
            for number in range(10):
                redis.set(f"{{demo:1:0}}:{number}", b"x" * 2**20)
        assert 1 <= number <= 6
        assert redis.ping()


@pytest.mark.parametrize("name", ["redis-cli", "valkey-cli"])
def test_the_probes_use_the_client_of_the_image(tmp_path, name):
    client = find_redis_server().with_name("redis-cli")
    (tmp_path / name).symlink_to(client)
    for program in ("grep", "sh", "sleep", "timeout"):
        (tmp_path / program).symlink_to(shutil.which(program))
    with running(tmp_path) as port:
        probes = ("livenessProbe", "readinessProbe", "startupProbe")
        assert [ended(start(probe, port, PASSWORD, tmp_path)) for probe in probes] == [0, 0, 0]
        assert ended(start("readinessProbe", port, "guess", tmp_path)) == 1
    assert [ended(start(probe, port, PASSWORD, tmp_path)) for probe in probes[:2]] == [1, 1]


def test_the_startup_probe_waits_for_the_server(tmp_path):
    with socket.socket() as held:
        # Until Redis listens, nothing does, and no other process gets the port.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        probe = start("startupProbe", port, PASSWORD)
        with running(tmp_path, port) as used:
            assert used == port
            assert ended(probe) == 0


def start(probe, port, password, folder=None):
    """Starts the command of a probe of the container; with only the programs in `folder`, if there is one."""
    subject = pipeline()
    (container,) = pod_template(planned(subject), subject, RedisForm.SINGLE)["spec"]["containers"]
    path = str(folder or f"{find_redis_server().parent}:{os.environ['PATH']}")
    environment = {**os.environ, "PATH": path, container["env"][0]["name"]: password}
    shell, *arguments = (part.replace("6379", str(port)) for part in container[probe]["exec"]["command"])
    return subprocess.Popen([shutil.which(shell), *arguments], env=environment, stdout=subprocess.DEVNULL)


def ended(probe):
    """Waits for the end of a probe; returns its exit code."""
    return probe.wait(DEADLINE)
