"""Supervision of a local pipeline, with small real processes as stages."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import httpx
import msgspec
import pytest

from support.up import alive
from support.waiting import DEADLINE, until
from syrinx_operator.local.events import Event
from syrinx_operator.local.pipeline import LocalPipeline, stage_environment
from syrinx_operator.local.running import claim, find_running
from syrinx_operator.resource.fields.connector import ConnectorSpec
from syrinx_operator.resource.spec import CodecSpec, PipelineSpec, TalkerSpec, default_pipeline
from syrinx_operator.resource.stage_config import LocalError
from syrinx_stages.contract.stages import Stage

SMALL_STAGE = Path(__file__).parents[1] / "support" / "small_stage.py"


def commands(**modes):
    return {stage: [sys.executable, "-P", str(SMALL_STAGE), modes.get(stage, "serve")] for stage in Stage}


def a_pipeline(**spec):
    spec = {"connector": ConnectorSpec(url="redis://127.0.0.1:1")} | spec
    return msgspec.structs.replace(default_pipeline(), spec=PipelineSpec(**spec))


def local(tmp_path, seen=None, pipeline=None, start_timeout=DEADLINE, cards=None, **modes):
    return LocalPipeline(
        pipeline or a_pipeline(),
        directory=tmp_path,
        port=0,
        observe=(seen if seen is not None else []).append,
        start_timeout=start_timeout,
        commands=commands(**modes),
        cards=cards,
    )


async def environment_of(url):
    """What the small stage at `url` was started with."""
    async with httpx.AsyncClient() as client:
        return (await client.get(url)).json()


async def test_all_stages_are_ready_after_entering(tmp_path):
    seen = []
    async with local(tmp_path, seen) as running:
        assert [child.name for child in running.processes] == ["talker-0", "codec-0", "gateway-0"]
        assert all(alive(child.pid) for child in running.processes)
        assert await environment_of(running.gateway_url)
        assert {event.name for event in seen if event.kind == "ready"} == {"talker-0", "codec-0", "gateway-0"}
        pids = [child.pid for child in running.processes]
    assert not any(map(alive, pids))


async def test_stages_drain_in_order(tmp_path):
    pipeline = a_pipeline(talker=TalkerSpec(replicas=2), codec=CodecSpec(replicas=2))
    async with local(tmp_path, pipeline=pipeline):
        pass
    words = (tmp_path / "history").read_text().splitlines()
    drains = [line.split("-")[0] for line in words if line.endswith("drained")]
    assert drains == ["gateway", "talker", "talker", "codec", "codec"]
    assert words.index("gateway-0 drained") < words.index("talker-0 term")
    assert max(words.index(f"talker-{n} drained") for n in (0, 1)) < words.index("codec-0 term")


async def test_standbys_start_when_the_others_are_ready_and_stop_with_their_stage(tmp_path):
    """Their start must not slow down what the others measure while they warm up."""
    seen = []
    spec = {"talker": TalkerSpec(standby=True), "codec": CodecSpec(standby=True)}
    async with local(tmp_path, seen, a_pipeline(**spec)) as running:
        assert [child.name for child in running.processes if child.is_standby] == [
            "talker-standby-0",
            "codec-standby-0",
        ]
        await running.all_ready()
    order = [(event.kind, event.name) for event in seen if event.kind in ("starting", "ready")]
    assert {name for _, name in order[:6]} == {"talker-0", "codec-0", "gateway-0"}
    words = (tmp_path / "history").read_text().splitlines()
    assert words.index("talker-standby-0 drained") < words.index("codec-standby-0 term")


async def test_a_standby_that_cannot_start_is_a_warning(tmp_path):
    seen = []
    async with local(tmp_path, seen, a_pipeline(talker=TalkerSpec(standby=True)), talker="alone") as running:
        with pytest.raises(LocalError, match="talker-standby-0 could not start"):
            await running.all_ready()
        assert all(child.is_ready for child in running.processes if not child.is_standby)
    (warning,) = (event for event in seen if event.kind == "warning" and event.name == "talker-standby-0")
    assert warning.text == ("could not start (exit code 3), so nothing stands by: syrinx: no checkpoint in bundled")


def restarts_of(seen, name):
    """When each unexpected exit of a process is followed by a restart."""
    events = (event for event in seen if event.kind == "exited" and event.name == name)
    return [event.text.rpartition("; ")[2] for event in events]


async def end(child, number):
    """Ends a ready process by a signal, and waits until it has exited."""
    await until(lambda: child.is_ready, "ready")
    pid = child.pid
    os.kill(pid, number)
    await until(lambda: child.pid != pid, "exited")


async def test_a_stage_that_exits_cleanly_restarts_at_once_each_time(tmp_path):
    seen = []
    async with local(tmp_path, seen, pipeline=a_pipeline(talker=TalkerSpec(replicas=2))) as running:
        for _ in range(4):
            await end(running.processes[0], signal.SIGTERM)
    assert restarts_of(seen, "talker-0") == ["restarting now"] * 4


async def test_replicas_that_crash_again_and_again_do_not_all_wait_for_long(tmp_path):
    seen = []
    async with local(tmp_path, seen, pipeline=a_pipeline(talker=TalkerSpec(replicas=2))) as running:
        first, second = running.processes[:2]
        for _ in range(3):
            await end(first, signal.SIGKILL)
        await until(lambda: first.is_ready, "ready")
        for _ in range(2):
            await end(second, signal.SIGKILL)
        await until(lambda: second.is_ready, "ready")
        await end(first, signal.SIGKILL)
        await end(second, signal.SIGKILL)
    assert restarts_of(seen, "talker-0") == ["restarting now", *(f"restarting in {n} s" for n in (1, 2, 4))]
    assert restarts_of(seen, "talker-1") == ["restarting now", "restarting in 1 s", "restarting in 1 s"]


async def test_a_stage_that_cannot_start_stops_the_pipeline_with_its_output(tmp_path):
    seen = []
    pipeline = local(tmp_path, seen, talker="fail")
    with pytest.raises(LocalError, match=r"(?s)talker-0 could not start \(exit code 3\).*no checkpoint in bundled"):
        await pipeline.__aenter__()
    assert all(child.pid is None for child in pipeline.processes)
    assert not [event for event in seen if event.kind == "exited"], "what never was ready is not restarted"


async def test_a_stage_that_is_never_ready_times_out(tmp_path):
    with pytest.raises(LocalError, match=r"(?s)codec-0 .*loading the model.*not ready within 1 s"):
        await local(tmp_path, codec="silent", start_timeout=1).__aenter__()


async def test_a_stage_that_does_not_exit_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("syrinx_operator.local.pipeline.KILL_SECONDS", 0.2)
    seen = []
    pipeline = local(tmp_path, seen, codec="deaf")
    async with pipeline:
        pid = pipeline.processes[1].pid
        pipeline.processes[1].drain_seconds = 0
    assert not alive(pid)
    codes = [event.code for event in seen if event.kind == "stopped" and event.name == "codec-0"]
    assert codes == [-signal.SIGKILL]


async def test_leaving_during_loading_leaves_no_processes(tmp_path):
    pipeline = local(tmp_path, codec="silent")
    entering = asyncio.create_task(pipeline.__aenter__())
    await until(lambda: len(pipeline.processes) == 3 and all(child.pid for child in pipeline.processes), "all started")
    pids = [child.pid for child in pipeline.processes]
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert not any(map(alive, pids))


async def test_logs_are_emitted_as_events_and_written_to_files(tmp_path):
    seen = []
    async with local(tmp_path, seen):
        await until(lambda: Event("log", "codec-0", "not the announcement") in seen, "logs")
    assert Event("log", "codec-0", "loading the model") in seen
    assert sorted((tmp_path / "codec-0.log").read_text().splitlines()) == ["loading the model", "not the announcement"]


async def test_stages_get_one_thread_and_the_redis_of_the_resource(tmp_path, monkeypatch):
    monkeypatch.setenv("REDIS_URL", "redis://elsewhere")
    monkeypatch.setenv("REDIS_PASSWORD", "old")
    monkeypatch.setenv("SECRET", "new")
    connector = ConnectorSpec(url="redis://127.0.0.1:1/3", password_env="SECRET")
    async with local(tmp_path, pipeline=a_pipeline(connector=connector)) as running:
        environment = await environment_of(running.gateway_url)
    assert environment["REDIS_URL"] == "redis://127.0.0.1:1/3"
    assert environment["REDIS_PASSWORD"] == "new"
    assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == "1"
    for config in tmp_path.glob("*.json"):
        assert b"new" not in config.read_bytes()
    assert "REDIS_PASSWORD" not in stage_environment(os.environ)


async def test_the_managed_redis_is_restarted_at_its_address(tmp_path):
    import redis.asyncio

    seen = []
    async with local(tmp_path, seen, pipeline=a_pipeline(connector=ConnectorSpec(managed=True))) as running:
        environment = await environment_of(running.gateway_url)
        address = {"url": environment["REDIS_URL"], "password": environment["REDIS_PASSWORD"]}
        async with redis.asyncio.from_url(**address) as client:
            os.kill((await client.info("server"))["process_id"], signal.SIGKILL)
        await until(lambda: sum(e.kind == "ready" and e.name == "redis" for e in seen) == 2, "redis again")
        async with redis.asyncio.from_url(**address) as client:
            pid = (await client.info("server"))["process_id"]
        assert running.redis_pids == {"redis": pid}
    assert not alive(pid)


def test_no_process_survives_kill_9(tmp_path):
    script = textwrap.dedent(
        """
        import asyncio, sys
        sys.path[:0] = {folders!r}
        from pathlib import Path
        from test_local import ConnectorSpec, a_pipeline, local

        async def main():
            async with local(Path({tmp!r}), pipeline=a_pipeline(connector=ConnectorSpec(managed=True))) as running:
                import httpx, json
                environment = httpx.get(running.gateway_url).json()
                import redis
                server = redis.Redis.from_url(environment["REDIS_URL"], password=environment["REDIS_PASSWORD"])
                pids = [child.pid for child in running.processes] + [server.info("server")["process_id"]]
                print(json.dumps(pids), flush=True)
                await asyncio.sleep(60)

        asyncio.run(main())
        """
    ).format(folders=[str(each) for each in Path(__file__).parents[:2]], tmp=str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    pids = json.loads(process.stdout.readline())
    assert len(pids) == 4
    assert all(map(alive, pids))
    process.kill()
    process.wait(DEADLINE)
    process.stdout.close()
    end = time.monotonic() + DEADLINE
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.01)
    assert not any(map(alive, pids))


def test_a_ready_pipeline_is_found_and_its_name_is_locked(tmp_path):
    with claim(tmp_path, "demo") as slot:
        assert find_running(tmp_path) == [], "not before it serves"
        slot.announce("http://127.0.0.1:1234")
        assert [(found.name, found.url, found.pid) for found in find_running(tmp_path)] == [
            ("demo", "http://127.0.0.1:1234", os.getpid())
        ]
        message = f"named demo is already running: process {os.getpid()} serves http://127.0.0.1:1234"
        with pytest.raises(LocalError, match=message), claim(tmp_path, "demo"):
            pass
        with claim(tmp_path, "other"):
            pass
    assert find_running(tmp_path) == []


def test_the_directory_of_a_killed_process_is_not_a_running_pipeline(tmp_path):
    script = (
        "import sys; from pathlib import Path; from syrinx_operator.local.running import claim\n"
        f"with claim(Path({str(tmp_path)!r}), 'demo') as slot:\n"
        "    slot.announce('http://127.0.0.1:1234'); print('up', flush=True); sys.stdin.read()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdout.readline()
    assert len(find_running(tmp_path)) == 1
    process.kill()
    process.communicate()
    assert "1234" in (tmp_path / "demo" / "up.json").read_text()
    assert find_running(tmp_path) == []
    with claim(tmp_path, "demo"):
        pass


async def test_each_process_sees_only_its_gpu(tmp_path):
    on_gpu = {"talker": TalkerSpec(device="cuda", replicas=2), "codec": CodecSpec(device="cuda", replicas=2)}
    seen = []
    async with local(tmp_path, seen, a_pipeline(**on_gpu), cards=("GPU-a", "GPU-b")) as running:
        visible = {
            member.name: (await environment_of(member.url)).get("CUDA_VISIBLE_DEVICES") for member in running.processes
        }
    expected = {"talker-0": "GPU-a", "talker-1": "GPU-b", "codec-0": "GPU-a", "codec-1": "GPU-b"}
    assert visible == {**expected, "gateway-0": os.environ.get("CUDA_VISIBLE_DEVICES")}
    [notice] = [event.text for event in seen if event.name == "gpus"]
    assert notice == "GPU 0: talker-0, codec-0; GPU 1: talker-1, codec-1"
