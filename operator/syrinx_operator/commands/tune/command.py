"""`syrinx tune`: prints, watches, plots or asks the tuner of a local pipeline or of one on Kubernetes."""

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import httpx
import msgspec
from rich.console import Console
from rich.live import Live
from rich.text import Text

from syrinx_operator.commands.inspect.cluster import ClusterError, Manifest, connect
from syrinx_operator.commands.tune.view import TuneError, View, changes, lines
from syrinx_operator.commands.tune.what_if import parse_what_if, what_if_lines
from syrinx_operator.local import tuning_files
from syrinx_operator.local.console import make_console
from syrinx_operator.local.running import RunningPipeline, find_running, state_directory
from syrinx_operator.resource.knobs import setting_of
from syrinx_operator.resource.resolve import ResolvedPipeline, resolve
from syrinx_operator.resource.state.status import StageStatus, read

REFRESH_SECONDS = 1.0
_Combine = Callable[[Iterable[float]], float]
_GAUGES: dict[str, tuple[str, _Combine]] = {
    "syrinx_live_streams": ("live streams", sum),
    "syrinx_queue_length": ("requests waiting", max),  # All gateways report the same queue.
}
_OFF = "is not tuned: its spec.tuning.mode is Off; Recommend and Auto tune"


def tune(
    name: str | None,
    namespace: str | None,
    *,
    watching: bool,
    as_json: bool,
    plot: str | None,
    trial: int | None,
    audit: str | None,
    what_if: str | None,
) -> None:
    """Prints, plots, or watches until Ctrl-C. Raises TuneError or ReportError."""
    if plot is None and (trial is not None or audit is not None):
        raise TuneError("--trial and --audit require --plot FILE.png")
    if plot is not None:
        _plot(name, namespace, audit, Path(plot), trial)
    elif watching:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(watch(lambda: read_view(name, namespace), make_console()))
    elif what_if is not None:
        asked = parse_what_if(what_if)
        answer = what_if_lines(asyncio.run(read_view(name, namespace)), asked)
        make_console().print("\n".join(answer), markup=False)
    else:
        view = asyncio.run(read_view(name, namespace))
        if as_json:
            print(msgspec.json.format(msgspec.json.encode(view.state), indent=2).decode())
        else:
            make_console().print("\n".join(lines(view, datetime.now(UTC))), markup=False)


async def watch(read: Callable[[], Awaitable[View]], console: Console) -> None:
    """Shows a live view in a terminal, else one line per change. Raises TuneError if the first read fails."""
    live = Live(console=console, screen=True, auto_refresh=False)
    before, reported = None, ""
    try:
        async for view, problem in _views(read):
            if console.is_terminal:
                live.start()
                text = [*lines(view, datetime.now(UTC)), "", problem or await gateway_load(view.admin_urls)]
                live.update(Text("\n".join(text), no_wrap=True, overflow="ellipsis"), refresh=True)
                continue
            for line in changes(before, view):
                console.print(f"{datetime.now().astimezone():%H:%M:%S}  {line}", markup=False)
            if problem and problem != reported:
                console.print(problem, markup=False)
            before, reported = view, problem
    finally:
        live.stop()


async def _views(read: Callable[[], Awaitable[View]]) -> AsyncIterator[tuple[View, str]]:
    """Yields the last state, and why it could not be read again, which may be temporary."""
    view, problem = await read(), ""
    while True:
        yield view, problem
        await asyncio.sleep(REFRESH_SECONDS)
        try:
            view, problem = await read(), ""
        except (TuneError, ClusterError) as error:
            problem = str(error)


def _plot(name: str | None, namespace: str | None, log: str | None, file: Path, trial: int | None) -> None:
    """Plots the audit log of a pipeline. That of a stopped local pipeline is still readable."""
    from syrinx_operator.commands.tune.plot import plot, read_audit  # Importing matplotlib takes half a second.

    files: Sequence[Path | None]
    if log is not None:
        pipeline = name if namespace is None or name is None else f"{namespace}/{name}"
        files = [None if log == "-" else Path(log)]
    elif namespace is not None:
        raise TuneError(
            "on Kubernetes the audit log is in the operator's log: kubectl logs deploy/syrinx-operator > log, "
            "then --audit log"
        )
    else:
        pipeline, directory = None, state_directory(os.environ) / (name or running_pipeline(None).name)
        files = tuning_files.audit_files(directory)
    entries = read_audit(files, pipeline)
    plot(entries, file, trial)
    print(f"{file}: {len(entries)} log entries", file=sys.stderr)


async def read_view(name: str | None, namespace: str | None) -> View:
    """Returns the state of a pipeline of this machine (by default the one started last) or of a namespace.

    Raises TuneError.
    """
    if namespace is None:
        return _read_local(running_pipeline(name))
    return await _read_cluster(namespace, name)


def running_pipeline(name: str | None) -> RunningPipeline:
    """Returns the running local pipeline of that name, or the one started last. Raises TuneError."""
    up = find_running(state_directory(os.environ))
    for running in up:
        if name in (None, running.name):
            return running
    if name is None:
        raise TuneError("no local pipeline is running: run `syrinx up`, or pass -n NAMESPACE for one on Kubernetes")
    others = ", ".join(running.name for running in up)
    raise TuneError(f"no local pipeline named {name} is running" + (f"; running: {others}" if others else ""))


async def gateway_load(admin_urls: Sequence[str]) -> str:
    """Returns the live streams of all gateways and their queue's length as text, without those that do not respond."""
    async with httpx.AsyncClient(timeout=2.0, trust_env=False) as client:
        texts = await asyncio.gather(*(_metrics(client, url) for url in admin_urls))
    parts = []
    for name, (title, combine) in _GAUGES.items():
        found = [re.search(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE) for text in texts]
        if values := [float(value[1]) for value in found if value]:
            parts.append(f"{combine(values):.0f} {title}")
    return ", ".join(parts)


async def _metrics(client: httpx.AsyncClient, admin_url: str) -> str:
    try:
        return (await client.get(f"{admin_url}/metrics")).raise_for_status().text
    except (httpx.HTTPError, httpx.InvalidURL):
        return ""


def _read_local(running: RunningPipeline) -> View:
    if running.tuning == "Off":
        raise TuneError(f"{running.name} {_OFF}")
    directory = state_directory(os.environ) / running.name
    try:
        memory = tuning_files.load(directory)
    except tuning_files.TuningMemoryError as error:
        raise TuneError(str(error)) from None
    if memory is None:
        raise TuneError(f"{running.name} has just started and was not evaluated yet; try again in a moment")
    resource = tuning_files.load_resource(directory)
    fields = msgspec.structs.asdict(memory)
    if resource is not None:
        talker, codec = resource.spec.talker, resource.spec.codec
        fields |= {"pipeline": resolve(resource), "talkers": talker.replicas, "codecs": codec.replicas}
    return View(name=running.name, location=running.url, admin_urls=running.admin_urls, **fields)


async def _read_cluster(namespace: str, name: str | None) -> View:
    """Returns the state of a resource from its status and its ConfigMap. Needs the operator extra.

    Raises TuneError or ClusterError.
    """
    async with connect(namespace) as cluster:
        live = await cluster.pipeline(name)
        name = live["metadata"]["name"]
        pipeline, status = _valid_pipeline(live), read(live.get("status"))
        spec = pipeline.spec
        if spec.tuning.mode == "Off":
            raise TuneError(f"{name} {_OFF}")
        if status.tuning is None:
            raise TuneError(f"the status of {name} has no tuning state: is the operator running?")
        text = await cluster.tuning_record(name)
    from syrinx_operator.cluster.plan.tuning_record import decode_tuning

    state, _ = decode_tuning(text, live["status"]["tuning"])
    return View(
        name=name,
        location=f"namespace {namespace}",
        state=state,
        requested=setting_of(pipeline),
        objectives=spec.slo.ttfa,
        slo=status.slo,
        pipeline=pipeline,
        talkers=_ready(status.talker) or spec.talker.replicas,
        codecs=_ready(status.codec) or spec.codec.replicas,
    )


def _ready(stage: StageStatus | None) -> int:
    return 0 if stage is None else stage.ready_replicas


def _valid_pipeline(live: Manifest) -> ResolvedPipeline:
    """Returns a live resource, resolved. Raises TuneError."""
    from syrinx_operator.cluster.objects.state import InvalidSpec, parse_pipeline

    try:
        return resolve(parse_pipeline(live))
    except InvalidSpec as error:
        raise TuneError(f"{live['metadata']['name']} is not valid: {error}") from None
