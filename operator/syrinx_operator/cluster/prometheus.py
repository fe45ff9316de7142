"""Reads gateways' counters from a Prometheus.

Its address comes from whoever may write the resource. So all that is ever sent there is `GET …/api/v1/query`, without
following redirects or the environment's proxies; nothing of an answer but numbers and an error type of Prometheus' own
is repeated; and the operator's token goes only to the address that the operator's installation names for it.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import msgspec
from msgspec import Struct

from syrinx_operator.cluster import names
from syrinx_operator.cluster.histogram import SERIES, Counters, Sample, counters
from syrinx_operator.cluster.state import Component, Owner
from syrinx_stages.contract.metrics import LIVE_STREAMS

DEADLINE = 10.0
"""Seconds for all questions of one look."""
MAX_ANSWER = 8 << 20
"""Bytes of one answer at most."""
MAX_TOKEN = 16_384
_STEPS = 10
"""Looks within a window."""
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


def counters_query(owner: Owner, window: int) -> str:
    """PromQL for every gateway's counters at ten moments of the last `window` seconds.

    Raw counters: `increase` would guess at both ends and miss a series' first count. A gateway that two jobs scrape
    counts once.
    """
    series = f'{{__name__=~"{"|".join(SERIES)}",{selector(owner)}}}'
    once = f"max by (__name__, pod, task_type, talker, codec, le) ({series})"
    return f"sum by (__name__, pod, task_type, le) ({once})[{window}s:{max(window // _STEPS, 1)}s]"


def age_query(owner: Owner) -> str:
    """PromQL for the age in seconds of the newest sample, by Prometheus' own clock."""
    return f"time() - max(timestamp({LIVE_STREAMS.name}{{{selector(owner)}}}))"


def selector(owner: Owner) -> str:
    """Label matchers for a pipeline's gateways: by pod and namespace, which every common scrape configuration keeps."""
    workload = re.escape(names.workload(owner.name, Component.GATEWAY))
    # A pod is named after its Deployment, a hash and a suffix; of a long name the hash's end is cut off.
    pods = f"{workload}-[a-z0-9]+(-[a-z0-9]+)?"
    return f'namespace="{_escaped(owner.namespace)}",pod=~"{_escaped(pods)}"'


async def read(url: str, owner: Owner, window: int, access: Access) -> tuple[dict[str, list[Counters]], float | None]:
    """Every gateway's counters by pod, oldest first, and the newest one's age in seconds (None if there is none).

    Raises `PrometheusError`.
    """
    try:
        async with asyncio.timeout(DEADLINE):
            token = await asyncio.to_thread(_token, url, access)
            trust = await asyncio.to_thread(_trust, access.ca_file)
            headers = {"Accept-Encoding": "identity", **({"Authorization": f"Bearer {token}"} if token else {})}
            async with httpx.AsyncClient(headers=headers, verify=trust, trust_env=False, timeout=DEADLINE) as client:
                ages = await _ask(client, url, age_query(owner))
                series = await _ask(client, url, counters_query(owner, window)) if ages else []
    except TimeoutError:
        raise PrometheusError(f"Prometheus did not answer within {DEADLINE:g} seconds") from None
    except (httpx.ConnectError, OSError) as error:
        raise PrometheusError(f"Prometheus cannot be asked: {str(error)[:200] or type(error).__name__}") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        # Their words may be those of whoever answered.
        raise PrometheusError(f"Prometheus cannot be asked: {type(error).__name__}") from None
    try:
        age = next((float(one.value[1]) for one in ages if one.value is not None), None)
        return by_pod(series), age
    except ValueError:
        raise PrometheusError("Prometheus answers what is no count") from None


def by_pod(series: list[_Series]) -> dict[str, list[Counters]]:
    """A range of samples as every gateway's counters, by pod, oldest first. Raises `ValueError`."""
    moments: dict[tuple[str, float], list[Sample]] = {}
    for one in series:
        label = one.metric.get
        edge = float(label("le", "0"))
        for at, value in one.values:
            sample = Sample(label("__name__", ""), label("task_type", ""), edge, float(value))
            moments.setdefault((label("pod", ""), at), []).append(sample)
    found: dict[str, list[Counters]] = {}
    for (pod, at), samples in sorted(moments.items(), key=lambda item: item[0]):
        if (look := counters(samples, at)) is not None:
            found.setdefault(pod, []).append(look)
    return found


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
