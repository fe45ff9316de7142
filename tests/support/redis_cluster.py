"""A Redis Cluster of three primaries with a replica each, as processes of this machine."""

import contextlib
import itertools
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from redis import Redis
from redis.cluster import RedisCluster
from redis.exceptions import RedisError

from support.required import require
from syrinx_stages.connector.server import find_redis_server
from syrinx_stages.connector.servers.cluster import SLOTS
from syrinx_stages.processes import die_with_parent

PRIMARIES = 3
BUS = 10_000
"""The port of the cluster bus is higher by this much. Redis 6.2 has no setting for it."""
NODE_TIMEOUT_MS = 1000
"""After this long a node is taken for dead."""
MANUAL_FAILOVER_SECONDS = 5.1
"""After this long a node has given one up."""
DEADLINE = 40.0
T = TypeVar("T")
_PORTS = itertools.cycle(random.SystemRandom().sample(range(11_000, 15_000), 4000))
"""They and those of the bus are below those that Linux gives to outgoing connections."""
_CONFIG = """\
bind 127.0.0.1
port {port}
requirepass {password}
masterauth {password}
dir {directory}
save ""
appendonly no
maxmemory-policy noeviction
repl-diskless-sync yes
repl-diskless-sync-delay 0
cluster-enabled yes
cluster-node-timeout {node_timeout}
{more}
"""


class Node:
    """A server of a Cluster, with a client of it."""

    def __init__(self, number: int, directory: Path, password: str, binary: Path) -> None:
        self.id = f"{number:040x}"
        self.port = _free_port()
        self.directory = directory / f"node-{number}"
        self.directory.mkdir(parents=True)
        self._binary = binary
        self.client = Redis(port=self.port, password=password, protocol=2, socket_timeout=10.0)
        self.process: subprocess.Popen[bytes]

    def start(self) -> None:
        command = [sys.executable, die_with_parent.__file__, str(os.getpid())]
        command += [str(self._binary), str(self.directory / "redis.conf")]
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def call(self, *command: object) -> Any:
        """Runs a CLUSTER command and returns its reply as it is: redis-py's parsers differ between its versions."""
        return self.client.execute_command("CLUSTER", *command)

    def view(self) -> dict[str, list[str]]:
        """Returns the nodes that it knows: by id, the fields from the address on."""
        lines = self.call("NODES").decode().splitlines()
        return {node: fields for node, *fields in map(str.split, lines)}

    def owner_of(self, slot: int) -> str:
        """Returns the id of the owner of a slot, as this node sees it."""
        for node, fields in self.view().items():
            for first, _, last in (each.partition("-") for each in fields[7:] if not each.startswith("[")):
                if int(first) <= slot <= int(last or first):
                    return node
        return ""


class Cluster:
    """The nodes: first the primaries, then the replica of each."""

    def __init__(
        self,
        directory: Path,
        replicas: int = 1,
        node_timeout_ms: int = NODE_TIMEOUT_MS,
        binary: Path | None = None,
        configure: Callable[[Node], str] = lambda node: "",
    ) -> None:
        """Writes the configurations into `directory`. `configure` returns further lines of the one of a node."""
        self._replicas = replicas
        self.password = secrets.token_urlsafe(24)
        server = binary or find_redis_server()
        count = PRIMARIES * (1 + replicas)
        self.nodes = [Node(number, directory, self.password, server) for number in range(1, count + 1)]
        for node in self.nodes:
            values = {"port": node.port, "password": self.password, "directory": node.directory}
            config = _CONFIG.format(**values, node_timeout=node_timeout_ms, more=configure(node))
            (node.directory / "redis.conf").write_text(config)
            # The nodes know each other from the start: meeting takes seconds.
            (node.directory / "nodes.conf").write_text(self._nodes_file(node))

    @property
    def url(self) -> str:
        """The URL for a connector: two of the nodes."""
        return f"redis+cluster://:{self.password}@{','.join(f'127.0.0.1:{node.port}' for node in self.nodes[1:3])}"

    def start(self) -> None:
        """Starts the nodes, and returns once every one serves."""
        for node in self.nodes:
            node.start()
        self.until_ready()

    def until_ready(self) -> None:
        """Returns once all nodes are connected, and replicas in sync."""
        problem = ""

        def ready() -> bool:
            nonlocal problem
            problem = self._problem()
            return not problem

        until(ready, lambda: f"all nodes serve; {problem}")

    def stop(self) -> None:
        for node in self.nodes:
            node.kill()
            node.client.close()

    def owner(self, slot: int) -> Node:
        """Returns the primary of a slot, once all nodes that reply agree on it and it says so itself."""

        def agreed() -> Node | None:
            views = {}
            for node in self.nodes:
                with contextlib.suppress(RedisError):
                    views[node.id] = node.owner_of(slot)
            named = set(views.values())
            return self._node(named.pop()) if len(named) == 1 and named <= views.keys() else None

        return until(agreed, f"all agree on the owner of slot {slot}")

    def replica(self, primary: Node) -> Node:
        """Returns the replica of a primary once it is in sync."""

        def found() -> Node | None:
            view = primary.view()
            replicas = (node for node in self.nodes if view[node.id][2] == primary.id)
            return next(
                (node for node in replicas if node.client.info("replication")["master_link_status"] == "up"), None
            )

        return until(found, f"{primary.port} has a replica")

    def fail_over(self, slot: int) -> None:
        """Promotes the replica of a slot's primary in agreement with it, and returns once all nodes know it."""
        former = self.owner(slot)
        replica = self.replica(former)
        self.promote(replica, slot)
        self.owner(slot)

    def promote(self, replica: Node, slot: int, *options: str) -> None:
        """Promotes a replica; options: of CLUSTER FAILOVER. Returns once it knows that it is the primary.

        The others vote for no replica of a primary for twice the node timeout after they did: it is asked again.
        """
        ended = 0.0

        def promoted() -> bool:
            nonlocal ended
            if replica.owner_of(slot) != replica.id and time.monotonic() > ended:
                replica.call("FAILOVER", *options)
                ended = time.monotonic() + MANUAL_FAILOVER_SECONDS
            return replica.owner_of(slot) == replica.id

        until(promoted, "the replica is promoted")

    def begin_move(self, slot: int) -> tuple[Node, Node]:
        """Begins to move a slot to another primary. Returns both: from now on keys that are missing are asked for."""
        source = self.owner(slot)
        owners = {source.owner_of(each) for each in range(0, SLOTS, SLOTS // (4 * PRIMARIES))} - {source.id}
        target = self._node(min(owners))
        target.call("SETSLOT", slot, "IMPORTING", source.id)
        source.call("SETSLOT", slot, "MIGRATING", target.id)
        return source, target

    def move_keys(self, slot: int, source: Node, target: Node, count: int = 10) -> int:
        """Moves up to `count` keys of a slot. Returns how many."""
        keys = source.call("GETKEYSINSLOT", slot, count)
        if keys:
            options = "", 0, 10_000, "AUTH", self.password, "KEYS", *keys
            source.client.execute_command("MIGRATE", "127.0.0.1", target.port, *options)
        return len(keys)

    def end_move(self, slot: int, target: Node) -> None:
        """Gives a slot whose keys have been moved to its new owner, as `redis-cli --cluster reshard` does."""
        primaries = {node for node in self.nodes if "master" in node.view()[node.id][1]}
        for node in (target, *(primaries - {target})):
            node.call("SETSLOT", slot, "NODE", target.id)

    def _node(self, node_id: str) -> Node:
        return next(node for node in self.nodes if node.id == node_id)

    def _problem(self) -> str:
        """Returns why a node does not serve, or a replica could not replace its primary; empty if all is well."""
        for node in self.nodes:
            try:
                info, state, view = node.client.info("replication"), node.call("INFO"), node.view()
            except RedisError as error:
                return f"{node.port}: {error}"
            if b"cluster_state:ok" not in state:
                return f"{node.port}: the Cluster is down"
            if info["role"] == "slave" and info["master_link_status"] != "up":
                return f"{node.port}: not in sync"
            if info["role"] == "master" and info["connected_slaves"] != self._replicas:
                return f"{node.port}: {info['connected_slaves']} replicas"
            if absent := [fields for fields in view.values() if "fail" in fields[1] or fields[6] != "connected"]:
                return f"{node.port}: not connected to {absent}"
        return ""

    def _nodes_file(self, myself: Node) -> str:
        lines = []
        for index, node in enumerate(self.nodes):
            flags, primary, epoch = "master", "-", index + 1
            slots = f" {SLOTS * index // PRIMARIES}-{SLOTS * (index + 1) // PRIMARIES - 1}"
            if index >= PRIMARIES:
                flags, primary, slots, epoch = "slave", self.nodes[index % PRIMARIES].id, "", index % PRIMARIES + 1
            flags = f"myself,{flags}" if node is myself else flags
            address = f"127.0.0.1:{node.port}@{node.port + BUS}"
            lines.append(f"{node.id} {address} {flags} {primary} 0 0 {epoch} connected{slots}")
        return "\n".join([*lines, f"vars currentEpoch {PRIMARIES} lastVoteEpoch 0", ""])


def server_url(url: str, key: str) -> str:
    """Returns the URL of the server that has a key: of a node of a Cluster, else `url` itself."""
    if "+cluster" not in url:
        return url
    seed = url.replace("+cluster", "").partition(",")[0]
    with RedisCluster.from_url(seed, protocol=2) as client:
        node = client.get_node_from_key(key)
    return f"{seed.rpartition('@')[0]}@{node.host}:{node.port}"


def find_valkey_server() -> Path:
    """Returns the valkey-server on the PATH, or that of `make .venv/.valkey`."""
    found = shutil.which("valkey-server") or shutil.which(Path(sys.prefix) / "valkey" / "valkey-server")
    require(found, "there is no valkey-server: make .venv/.valkey")
    return Path(found)


@contextlib.contextmanager
def redis_cluster(directory: Path, **options: object) -> Iterator[Cluster]:
    """Runs a Cluster. options: arguments of `Cluster`."""
    cluster = Cluster(directory, **options)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def until(condition: Callable[[], T], description: str | Callable[[], str]) -> T:
    """Returns the result of `condition` once it is true. Fails after `DEADLINE`."""
    deadline = time.monotonic() + DEADLINE
    while not (result := condition()):
        assert time.monotonic() < deadline, (
            f"waited {DEADLINE} s until {description() if callable(description) else description}"
        )
        time.sleep(0.02)
    return result


def _free_port() -> int:
    """Returns a port that nothing listens on, nor on that of its bus."""
    while True:
        port = next(_PORTS)
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            for each in (port, port + BUS):
                held.enter_context(socket.create_server(("127.0.0.1", each)))
            return port
