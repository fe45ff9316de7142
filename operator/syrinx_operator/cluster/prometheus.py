"""Reads the stages' counters from a Prometheus.

Its address comes from whoever may write the resource. So all that is ever sent there is `GET …/api/v1/query`, without
following redirects or the environment's proxies; nothing of an answer but numbers and an error type of Prometheus' own
is repeated; and the operator's token goes only to the address that the operator's installation names for it.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import msgspec
from msgspec import Struct

from syrinx_operator.cluster import names
from syrinx_operator.cluster.state import STAGES, Component, Owner
from syrinx_operator.cluster.topology import GUEST, HOST
from syrinx_operator.resource.knobs import Stage
from syrinx_operator.tuner.snapshot import (
    LABELS,
    MAX_COUNT,
    WANTED_METRICS,
    Sample,
    Snapshot,
    build_snapshot,
    is_export_of,
    wanted_series,
)

DEADLINE = 10.0
"""Seconds for all questions of one look."""
MAX_ANSWER = 8 << 20
"""Bytes of one answer at most."""
MAX_TOKEN = 16_384
MAX_SKEW = 5.0
"""Seconds by which its clock may differ."""
LEAST_SPAN = 90
"""Seconds that are asked for at least: some scrapes."""
_STEPS = 10
"""Moments within a span at which Prometheus sums."""
_OWN = LABELS | {"__name__", "pod", "namespace", "stage", "version"}
"""Labels that are not those of a scrape's target."""
_Target = tuple[tuple[str, str], ...]
_ERROR_TYPES = frozenset({"timeout", "canceled", "execution", "bad_data", "internal", "unavailable", "not_found"})


class PrometheusError(Exception):
    """Prometheus could not be asked, or its answer is none; the message says which."""


class Access(Struct, frozen=True, kw_only=True):
    """What the operator's installation knows of a Prometheus that wants a token or has a CA of its own."""

    url: str = ""
    """The address that the token is for."""
    token_file: str = ""
    ca_file: str = ""
    """CA certificates (PEM) that every https:// address is checked with; empty for the image's."""


PLAIN = Access()
"""No token, and the image's CA certificates."""


class _Series(Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]] = []
    value: tuple[float, str] | None = None


class _Data(Struct, rename="camel"):
    result_type: str
    result: list[_Series]


class _Answer(Struct, rename="camel"):
    status: str
    data: _Data | None = None
    error_type: str = ""


def access(environment: Mapping[str, str]) -> Access:
    """The access that an environment describes. Raises `ValueError` for a token that is for no address."""
    found = Access(
        url=environment.get("SYRINX_PROMETHEUS_URL", ""),
        token_file=environment.get("SYRINX_PROMETHEUS_TOKEN_FILE", ""),
        ca_file=environment.get("SYRINX_PROMETHEUS_CA_FILE", ""),
    )
    if found.token_file and _origin(found.url) is None:
        raise ValueError("SYRINX_PROMETHEUS_TOKEN_FILE needs SYRINX_PROMETHEUS_URL, the address that the token is for")
    return found


def counters_query(owner: Owner, seconds: int, apart: frozenset[Stage]) -> str:
    """PromQL for the counters of every gateway, talker and codec within the last `seconds`.

    Raw samples, with their own times: `increase` would guess at both ends and miss a series' first count. Where
    replicas are not told apart that would be too many: then Prometheus sums, at moments of its own choice.
    """
    names = sorted({name for stage in WANTED_METRICS.values() for name in stage})
    series = f'{{__name__=~"{"|".join(names)}",{selector(owner)}}}'
    if apart == frozenset(Stage):
        return f"{series}[{seconds}s]"
    kept = sorted(LABELS - set(Stage))
    # A pod that two jobs scrape counts once.
    once = f"max by (__name__, pod, {', '.join([*Stage, *kept])}) ({series})"
    total = f"sum by (__name__, pod, {', '.join([*sorted(apart), *kept])}) ({once})"
    return f"{total}[{seconds}s:{max(seconds // _STEPS, 1)}s]"


def clock_query() -> str:
    """PromQL for Prometheus' own clock, in seconds since 1970."""
    return "vector(time())"


def selector(owner: Owner) -> str:
    """Label matchers for a pipeline's stages: by pod and namespace, which every common scrape configuration keeps."""
    pods = "|".join(_pods(owner).values())
    return f'namespace="{_escaped(owner.namespace)}",pod=~"{_escaped(pods)}"'


def _pods(owner: Owner) -> dict[Component, str]:
    """Regular expressions for the names of each stage's pods."""
    # A gateway is named after its Deployment, a hash and a suffix; of a long name the hash's end is cut off.
    suffixes = dict.fromkeys(STAGES, "[0-9]+") | {Component.GATEWAY: "[a-z0-9]+(-[a-z0-9]+)?"}
    return {stage: f"{re.escape(names.workload(owner.name, stage))}-{suffixes[stage]}" for stage in STAGES}


async def read(
    url: str, owner: Owner, seconds: int, apart: frozenset[Stage], access: Access, clock: Callable[[], datetime]
) -> tuple[Snapshot, ...]:
    """The counters of a pipeline's replicas within the last `seconds`, oldest first. Raises `PrometheusError`.

    Its clock must be `clock`, so that what happened is ascribed to the settings that were in force then.
    """
    try:
        async with asyncio.timeout(DEADLINE):
            token = await asyncio.to_thread(_token, url, access)
            trust = await asyncio.to_thread(_trust, access.ca_file)
            headers = {"Accept-Encoding": "identity", **({"Authorization": f"Bearer {token}"} if token else {})}
            async with httpx.AsyncClient(headers=headers, verify=trust, trust_env=False, timeout=DEADLINE) as client:
                asked_at = clock()
                times = await _ask(client, url, clock_query())
                skew = _skew(times, asked_at, clock())
                series = await _ask(client, url, counters_query(owner, seconds, apart))
        if abs(skew) > MAX_SKEW:
            raise PrometheusError(f"its clock differs from the operator's by {abs(skew):.0f} seconds")
        _check_times(series, clock().timestamp() + MAX_SKEW)
        return await asyncio.to_thread(snapshots, owner, series, apart)
    except TimeoutError:
        raise PrometheusError(f"Prometheus did not answer within {DEADLINE:g} seconds") from None
    except (httpx.ConnectError, OSError) as error:
        raise PrometheusError(f"Prometheus cannot be asked: {str(error)[:200] or type(error).__name__}") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        # Their words may be those of whoever answered.
        raise PrometheusError(f"Prometheus cannot be asked: {type(error).__name__}") from None
    except (ValueError, OverflowError):
        raise PrometheusError("Prometheus answers what is no count") from None


def _skew(times: list[_Series], before: datetime, after: datetime) -> float:
    """Seconds by which Prometheus' clock is ahead, at least. Raises `ValueError`."""
    if len(times) != 1 or times[0].value is None:
        raise ValueError("no time")
    theirs = float(times[0].value[1])
    # NaN would pass every comparison that is not asked this way round.
    if not 0 <= theirs <= MAX_COUNT:
        raise ValueError("no time")
    return max(theirs - after.timestamp(), 0.0) + min(theirs - before.timestamp(), 0.0)


def _check_times(found: Iterable[_Series], latest: float) -> None:
    """Raises `ValueError` for a sample of the future: all that comes until then would be taken for old."""
    if not all(0 <= at <= latest for one in found for at, _ in one.values):
        raise ValueError("no time")


def snapshots(owner: Owner, found: Iterable[_Series], apart: frozenset[Stage]) -> tuple[Snapshot, ...]:
    """Ranges of samples as each replica's counters, oldest first. Raises `ValueError`."""
    pods = {stage: re.compile(pattern) for stage, pattern in _pods(owner).items()}
    targets: dict[str, dict[_Target, list[_Series]]] = {}
    for one in found:
        target = tuple(sorted(item for item in one.metric.items() if item[0] not in _OWN))
        targets.setdefault(one.metric.get("pod", ""), {}).setdefault(target, []).append(one)
    snapshots: list[Snapshot] = []
    for pod, by_target in targets.items():
        stage = next((stage for stage, pattern in pods.items() if pattern.fullmatch(pod)), None)
        # A talker's pod may have a codec in it: whoever is there has marks of its own.
        for each in () if stage is None else (HOST, GUEST) if stage is HOST else (stage,):
            snapshots += _of_pod(pod, each, _one_target(by_target), apart)
    return tuple(sorted(snapshots, key=lambda each: (each.time, each.replica)))


def _one_target(targets: Mapping[_Target, list[_Series]]) -> list[_Series]:
    """A pod that two jobs scrape counts once: by the first of those that still scrape it."""
    newest = {
        target: max((at for one in found for at, _ in one.values), default=0.0) for target, found in targets.items()
    }
    last = max(newest.values())
    return targets[min(target for target, at in newest.items() if last - at <= LEAST_SPAN)]


def _of_pod(pod: str, stage: Component, found: Iterable[_Series], apart: frozenset[Stage]) -> list[Snapshot]:
    moments: dict[float, list[Sample]] = {}
    for one in found:
        key = wanted_series(stage.value, one.metric.get("__name__", ""), one.metric)
        if key is None:
            continue
        for at, value in one.values:
            moments.setdefault(at, []).append(Sample(key, float(value)))
    told = frozenset(str(each) for each in apart)
    return [
        build_snapshot(pod, stage.value, datetime.fromtimestamp(at, UTC), samples, told)
        for at, samples in sorted(moments.items())
        if is_export_of(stage.value, samples)
    ]


async def _ask(client: httpx.AsyncClient, url: str, query: str) -> list[_Series]:
    body = bytearray()
    async with client.stream("GET", f"{url.rstrip('/')}/api/v1/query", params={"query": query}) as response:
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > MAX_ANSWER:
                raise PrometheusError(f"Prometheus' answer is larger than {MAX_ANSWER >> 20} MiB")
    return _read(response.status_code, bytes(body))


def _read(code: int, body: bytes) -> list[_Series]:
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except msgspec.MsgspecError:
        hints = {401: ": it wants a token", 403: ": it refuses the token, or wants one"}
        raise PrometheusError(f"the address answers {code}, and not as a Prometheus{hints.get(code, '')}") from None
    if code != 200 or answer.status != "success" or answer.data is None:
        kind = answer.error_type if answer.error_type in _ERROR_TYPES else "an error of no known type"
        raise PrometheusError(f"Prometheus answers {code}: {kind}")
    return answer.data.result


def _token(url: str, access: Access) -> str:
    if not access.token_file or _origin(url) != _origin(access.url):
        return ""
    with Path(access.token_file).open("rb") as file:
        token = file.read(MAX_TOKEN).strip()
    if not re.fullmatch(rb"[!-~]+", token):
        raise PrometheusError(f"{access.token_file} holds no token")
    return token.decode("ascii")


def _origin(url: str) -> tuple[str, str, int] | None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return None
    return parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80)


def _trust(ca_file: str) -> ssl.SSLContext:
    return _context(ca_file, Path(ca_file).stat().st_mtime if ca_file else 0.0)


@lru_cache(maxsize=4)
def _context(ca_file: str, changed: float) -> ssl.SSLContext:
    """Certificates are read when the file has changed; `changed` is when."""
    return ssl.create_default_context(cafile=ca_file or None)


def _escaped(text: str) -> str:
    """As the inside of a PromQL string."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
