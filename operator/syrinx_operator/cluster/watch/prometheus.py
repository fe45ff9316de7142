"""Reads the stages' counters from a Prometheus server.

Everyone who may write a TTSPipeline chooses the URL. The operator therefore sends only `GET …/api/v1/query`, follows no
redirects and no proxies from the environment, and repeats nothing from a response except numbers and known error types.
"""

import asyncio
import re
import ssl
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

import httpx
import msgspec
from msgspec import Struct

from syrinx_operator.cluster.objects.series import pod_patterns, selector
from syrinx_operator.cluster.objects.state import Owner
from syrinx_operator.cluster.watch.prometheus_access import Access, Credentials, PrometheusError, request_headers
from syrinx_operator.observed import snapshot
from syrinx_operator.observed.snapshot import LABELS, MAX_COUNT, Sample, Snapshot
from syrinx_stages.contract.stages import Stage

TIMEOUT = 10.0
"""Seconds for all queries of one read."""
MAX_ANSWER_BYTES = 8 << 20
MAX_SKEW = 5.0
"""Maximum difference between Prometheus's clock and ours in seconds."""
MIN_SPAN = 90
"""Minimum query range in seconds, enough for several scrapes."""
CLOCK_QUERY = "vector(time())"
"""PromQL for Prometheus's own clock, in seconds since 1970."""
_METRIC_LABELS = LABELS | {"__name__", "pod", "namespace", "stage", "version"}
"""Labels that do not identify a scrape target."""
_Target = tuple[tuple[str, str], ...]
_ERROR_TYPES = frozenset({"timeout", "canceled", "execution", "bad_data", "internal", "unavailable", "not_found"})


class _Series(Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]] = []
    value: tuple[float, str] | None = None


class _Data(Struct):
    result: list[_Series]


class _Answer(Struct, rename="camel"):
    status: str
    data: _Data | None = None
    error_type: str = ""


def counters_query(owner: Owner, seconds: int) -> str:
    """Returns PromQL for the counters of all gateways, talkers and codecs in the last `seconds`.

    It selects raw samples with their timestamps: `increase` extrapolates and misses a series' first value.
    """
    names = sorted({name for stage in snapshot.WANTED_METRICS.values() for name in stage})
    return f'{{__name__=~"{"|".join(names)}",{selector(owner)}}}[{seconds}s]'


async def read(
    url: str, owner: Owner, seconds: int, access: Access, credentials: Credentials, clock: Callable[[], datetime]
) -> tuple[Snapshot, ...]:
    """Returns the counters of a pipeline's replicas in the last `seconds`, oldest first. Raises PrometheusError.

    Prometheus's clock must agree with `clock`: requests are attributed to the settings in force at their time.
    """
    try:
        async with asyncio.timeout(TIMEOUT):
            async with await _client(url, access, credentials) as client:
                asked_at = clock()
                times = [one.value for one in await _query(client, url, CLOCK_QUERY)]
                theirs, answered_at = float(times[0][1]) if len(times) == 1 and times[0] else -1.0, clock()
                series = await _query(client, url, counters_query(owner, seconds))
        # This form of the comparison also rejects NaN.
        if not 0 <= theirs <= MAX_COUNT:
            raise ValueError("no time")
        skew = max(theirs - answered_at.timestamp(), 0.0) + min(theirs - asked_at.timestamp(), 0.0)
        if abs(skew) > MAX_SKEW:
            raise PrometheusError(f"its clock differs from the operator's by {abs(skew):.0f} seconds")
        # After a sample in the future, all samples until then would count as old.
        latest = clock().timestamp() + MAX_SKEW
        if not all(0 <= at <= latest for one in series for at, _ in one.values):
            raise ValueError("no time")
        return await asyncio.to_thread(snapshots, owner, series)
    except TimeoutError:
        raise PrometheusError(f"Prometheus did not answer within {TIMEOUT:g} seconds") from None
    except (httpx.ConnectError, OSError) as error:
        raise PrometheusError(f"Prometheus is unreachable: {str(error)[:200] or type(error).__name__}") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        # Their messages may contain text from the response.
        raise PrometheusError(f"the query failed: {type(error).__name__}") from None
    except (ValueError, OverflowError):
        raise PrometheusError("Prometheus returned values that are not counters") from None


def snapshots(owner: Owner, found: Iterable[_Series]) -> tuple[Snapshot, ...]:
    """Returns range vectors as each replica's counters, oldest first. Raises ValueError."""
    patterns = {stage: re.compile(pattern) for stage, pattern in pod_patterns(owner).items()}
    pods: dict[str, dict[_Target, list[_Series]]] = {}
    for one in found:
        target = tuple(sorted(item for item in one.metric.items() if item[0] not in _METRIC_LABELS))
        pods.setdefault(one.metric.get("pod", ""), {}).setdefault(target, []).append(one)
    snapshots: list[Snapshot] = []
    for pod, by_target in pods.items():
        stage = next((stage for stage, pattern in patterns.items() if pattern.fullmatch(pod)), None)
        if stage is None:
            continue
        # A talker's pod may contain a codec, whose series have marker metrics of their own.
        for each in (Stage.TALKER, Stage.CODEC) if stage is Stage.TALKER else (stage,):
            snapshots += _pod_snapshots(pod, each, _one_target(by_target))
    return tuple(sorted(snapshots, key=lambda each: (each.time, each.replica)))


def _one_target(targets: Mapping[_Target, list[_Series]]) -> list[_Series]:
    """Returns the series of one scrape target per pod: the first that is still scraped."""
    newest = {
        target: max((at for one in found for at, _ in one.values), default=0.0) for target, found in targets.items()
    }
    last = max(newest.values())
    return targets[min(target for target, at in newest.items() if last - at <= MIN_SPAN)]


def _pod_snapshots(pod: str, stage: Stage, found: Iterable[_Series]) -> list[Snapshot]:
    by_time: dict[float, list[Sample]] = {}
    for one in found:
        if (key := snapshot.wanted_series(stage.value, one.metric.get("__name__", ""), one.metric)) is not None:
            for at, value in one.values:
                by_time.setdefault(at, []).append((key, float(value)))
    return [
        snapshot.build_snapshot(pod, stage.value, datetime.fromtimestamp(at, UTC), samples)
        for at, samples in sorted(by_time.items())
        if snapshot.is_export_of(stage.value, samples)
    ]


async def _client(url: str, access: Access, credentials: Credentials) -> httpx.AsyncClient:
    """Returns a client that authenticates and verifies the server. Raises PrometheusError or OSError."""
    headers = await asyncio.to_thread(request_headers, url, access, credentials)
    headers["Accept-Encoding"] = "identity"
    tls = credentials.tls
    if tls is None:
        tls = await asyncio.to_thread(ssl.create_default_context, cafile=access.ca_file or None)
    return httpx.AsyncClient(headers=headers, verify=tls, trust_env=False, timeout=TIMEOUT)


async def _query(client: httpx.AsyncClient, url: str, query: str) -> list[_Series]:
    body = bytearray()
    async with client.stream("GET", f"{url.rstrip('/')}/api/v1/query", params={"query": query}) as response:
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > MAX_ANSWER_BYTES:
                raise PrometheusError(f"the response is larger than {MAX_ANSWER_BYTES >> 20} MiB")
    code = response.status_code
    if code in (401, 403):
        advice = "it requires a token, a password or a header, or rejects the one that is sent"
        raise PrometheusError(f"the address answers with HTTP status {code}: {advice}")
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except msgspec.MsgspecError:
        message = f"the address answers with HTTP status {code}, not like a Prometheus API"
        raise PrometheusError(message) from None
    if code != 200 or answer.status != "success" or answer.data is None:
        kind = answer.error_type if answer.error_type in _ERROR_TYPES else "unknown error type"
        raise PrometheusError(f"Prometheus answers with HTTP status {code}: {kind}")
    return answer.data.result
