"""What a connector says about rights and settings of a real Redis."""

import re
import shutil
import subprocess
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis import Redis

from support.waiting import until_blocking
from syrinx_operator.cluster.plan.connector.redis import stage_user
from syrinx_stages.connector.base import ServerReport, StorageFull
from syrinx_stages.connector.redis import scripts
from syrinx_stages.connector.redis.streams import RedisConnector
from syrinx_stages.connector.server import RedisServer, find_redis_server
from syrinx_stages.connector.servers.check import CHECKING, COMMANDS, OPTIONAL
from syrinx_stages.contract.keys import Keys

ROOT = Path(__file__).parents[2]
ALL = (*COMMANDS, *OPTIONAL, *CHECKING)


class Server:
    """A Redis, and a user of it with rights that a test chooses."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self.keys = Keys(f"test-{uuid.uuid4().hex}", "1")
        self.admin = Redis(port=server.port, password=server.password, protocol=2)

    def connector(self) -> RedisConnector:
        return RedisConnector(f"redis://stages:own@127.0.0.1:{self._server.port}", self.keys)

    async def check(self, *rules: str, keys: str = "~{test-*") -> ServerReport:
        """Returns the report for a user with these rules."""
        self.admin.execute_command("ACL", "SETUSER", "stages", "reset", "on", ">own", keys, *rules)
        connector = self.connector()
        try:
            return await connector.check_server()
        finally:
            await connector.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    with RedisServer() as it:
        yield Server(it)


def allowed(*without: str) -> Iterator[str]:
    yield "-@all"
    yield from (f"+{name}" for name in ALL if name not in without)


def calls(pattern: str, *sources: str) -> set[str]:
    """Returns the commands in a source text, with the subcommands of those that have some."""
    containers = {name.partition("|")[0] for name in ALL if "|" in name}
    found = [re.findall(pattern, source) for source in sources]
    names = {(name.lower(), sub.lower()) for each in found for name, sub in each}
    return {f"{name}|{sub}" if name in containers else name for name, sub in names}


def test_the_list_has_all_commands_that_are_sent_and_no_others() -> None:
    folder = ROOT / "stages/syrinx_stages/connector/redis"
    modules = [file.read_text() for file in folder.glob("*.py")]
    sent = calls(r'b"([A-Z]+)"(?:, b"([A-Z]+)")?', *modules)
    lua = [each.source.decode() for each in vars(scripts).values() if isinstance(each, scripts.Script)]
    sent |= calls(r"redis\.p?call\('([A-Z]+)'(?:, '([A-Z]+)')?", *lua)
    options = {"block", "count", "ex", "group", "streams", "auth", "select"}
    assert sent - options == {*COMMANDS, *OPTIONAL}


def test_the_documentation_lists_them() -> None:
    text = (ROOT / "docs/operating/pipelines.md").read_text()
    [rules] = re.findall(r"^ACL SETUSER syrinx (.*?)```", text, re.MULTILINE | re.DOTALL)
    listed = [rule[1:] for rule in rules.replace("\\\n", " ").split() if rule.startswith("+")]
    assert listed == [*ALL]


async def test_these_commands_are_enough(server: Server) -> None:
    report = await server.check(*allowed())
    assert (report.obstacle, report.warnings) == (None, ())
    version = server.admin.info()["redis_version"]
    assert f"version {version}, no limit of memory (noeviction), no append-only file, 0 replicas" in report.summary


async def test_the_user_of_a_managed_redis_has_them(server: Server) -> None:
    report = await server.check(*stage_user("test", "x").partition("~{test:* ")[2].split())
    assert (report.obstacle, report.warnings) == (None, ())


async def test_each_missing_right_is_named(server: Server) -> None:
    for name in COMMANDS:
        report = await server.check(*allowed(name))
        assert f"the user may not run {name}; allow it with ACL SETUSER USER +{name}" in str(report.obstacle)


async def test_a_user_without_dangerous_commands_lacks_some_of_client(server: Server) -> None:
    """Of Redis 6.2 all, of Redis 7 one."""
    report = await server.check("+@all", "-@dangerous", "+info")
    assert "the user may not run client|" in str(report.obstacle)
    assert str(report.obstacle).endswith("+client|unblock")


async def test_several_missing_rights_are_named_at_once(server: Server) -> None:
    report = await server.check(*allowed("xadd", "xclaim"))
    assert "may not run xadd, xclaim; allow it with ACL SETUSER USER +xadd +xclaim" in str(report.obstacle)


@pytest.mark.parametrize("name", OPTIONAL)
async def test_a_right_that_is_not_needed_is_a_warning(server: Server, name: str) -> None:
    report = await server.check(*allowed(name))
    assert report.obstacle is None
    [warning] = report.warnings
    assert f"the user may not run {name}: " in warning
    assert warning.endswith(f"; allow +{name}")


@pytest.mark.parametrize("keys", ["~other:*", "~{test-*:requests"])
async def test_keys_that_the_user_may_not_use_are_named(server: Server, keys: str) -> None:
    report = await server.check(*allowed(), keys=keys)
    assert f"the user may not use the keys of the pipeline; allow ~{{{server.keys.pipeline}:*" in str(report.obstacle)


async def test_a_user_without_transactions_is_served_unchecked(server: Server) -> None:
    report = await server.check(*allowed("multi", "client|id"))
    assert report.obstacle is None
    [warning] = report.warnings
    assert "rights are not checked, because the user may not run multi and discard" in warning


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random", "volatile-ttl"])
async def test_a_redis_that_evicts_is_a_warning(server: Server, policy: str) -> None:
    server.admin.config_set("maxmemory-policy", policy)
    server.admin.config_set("maxmemory", "64mb")
    report = await server.check(*allowed())
    assert report.obstacle is None
    [warning] = report.warnings
    assert f"maxmemory-policy is {policy}: at 64 MiB (maxmemory) Redis deletes streams" in warning


async def test_a_check_changes_nothing(server: Server) -> None:
    await server.check(*allowed())
    assert server.admin.dbsize() == 0
    assert server.admin.info("persistence")["rdb_changes_since_last_save"] == 0


async def test_a_redis_that_cannot_save_refuses_entries_with_the_reason(server: Server) -> None:
    server.admin.config_set("save", "3600 1")
    shutil.rmtree(server.admin.config_get("dir")["dir"])
    server.admin.bgsave()
    until_blocking(lambda: server.admin.info("persistence")["rdb_last_bgsave_status"] == "err", "the failure to save")
    await server.check(*allowed())
    connector = server.connector()
    with pytest.raises(StorageFull, match="refuses writes because it cannot save to its disk"):
        await connector.check_room()
    await connector.close()
    server.admin.config_set("save", "")  # Otherwise it does not end.


@pytest.fixture
def disabling(tmp_path: Path) -> Iterator[str]:
    """The URL of a Redis without XCLAIM."""
    socket = tmp_path / "socket"
    options = ("--port", "0", "--unixsocket", str(socket), "--rename-command", "XCLAIM", "", "--save", "")
    process = subprocess.Popen([find_redis_server(), *options], stdout=subprocess.DEVNULL, cwd=tmp_path)
    try:
        until_blocking(socket.exists, "Redis listens")
        yield f"unix://{socket}"
    finally:
        process.kill()
        process.wait()


async def test_a_command_that_is_disabled_is_named(disabling: str) -> None:
    connector = RedisConnector(disabling, Keys("test", "1"))
    assert "there is no command xclaim: it is disabled" in str((await connector.check_server()).obstacle)
    await connector.close()
