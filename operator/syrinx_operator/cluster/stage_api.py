"""The stages' admin ports: what settings a replica has in force, new ones, and its metrics."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Protocol, Self

import httpx
import msgspec
from msgspec import Struct

from syrinx_operator.cluster.api import Api, ApiError
from syrinx_operator.cluster.config import Access
from syrinx_operator.cluster.kinds import POD
from syrinx_operator.cluster.names import GUEST_ADMIN_PORT
from syrinx_operator.cluster.state import STAGES, Replica, Reported
from syrinx_operator.cluster.telemetry import Telemetry
from syrinx_operator.resource.rules import ADMIN_PORT
from syrinx_operator.tuner.decide import OVERRIDE_TTL_SECONDS

log = logging.getLogger(__name__)

TIMEOUT: Final = 3.0
"""Seconds that one request to a replica may take."""
AT_ONCE: Final = 16
"""Replicas that are asked at the same time, over all pipelines."""
MAX_ANSWER: Final = 8 * 1024 * 1024
"""Bytes of an answer that are read."""


class StageError(Exception):
    """A replica did not do it; the message says why."""


class Base(Protocol):
    """Settings that a replica shall have in force for good."""

    @property
    def generation(self) -> int:
        """Of the settings."""

    @property
    def settings(self) -> dict[str, Any]:
        """All of them."""


class Wanted(Struct, frozen=True):
    """What a replica is to be told."""

    base: Base
    limited: Mapping[str, Any] | None = None
    """Settings over the base that end by themselves unless they are told again; None if the base is all."""


class StageApi:
    """Talks to replicas, directly or through the API server. Use as `async with`."""

    def __init__(self, api: Api, access: Access, telemetry: Telemetry) -> None:
        self._api = api
        self._access = access
        self._telemetry = telemetry
        self._slots = asyncio.Semaphore(AT_ONCE)
        # Pods are reached as they are, never through a proxy that the environment names.
        self._http = httpx.AsyncClient(timeout=TIMEOUT, trust_env=False, limits=httpx.Limits(max_connections=AT_ONCE))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def read_settings(self, namespace: str, replicas: Iterable[Replica]) -> tuple[Replica, ...]:
        """The replicas, those that are ready with what they report. One that does not answer has nothing to report."""
        return tuple(await asyncio.gather(*(self._read(namespace, replica) for replica in replicas)))

    async def push_settings(
        self,
        namespace: str,
        replicas: Iterable[Replica],
        wanted: Callable[[Replica], Wanted | None],
        fence: Callable[[], None],
    ) -> tuple[Replica, ...]:
        """The replicas with what they report after each was told what it does not have in force yet.

        `fence` is asked before each write; what it raises ends everything.
        """
        return tuple(await asyncio.gather(*(self._push(namespace, each, wanted(each), fence) for each in replicas)))

    async def scrape(self, namespace: str, replica: Replica) -> str:
        """A replica's metrics as text. Raises `StageError`."""
        return (await self._request(namespace, replica, "GET", "metrics")).decode(errors="replace")

    async def _read(self, namespace: str, replica: Replica) -> Replica:
        if not replica.ready or replica.terminating or replica.component not in STAGES:
            return replica
        try:
            reported = _reported(await self._request(namespace, replica, "GET", "settings"))
        except StageError as error:
            log.info("%s/%s: does not report its settings: %s", namespace, replica.name, error)
            return replica
        return msgspec.structs.replace(replica, reported=reported)

    async def _push(
        self, namespace: str, replica: Replica, wanted: Wanted | None, fence: Callable[[], None]
    ) -> Replica:
        if wanted is None or replica.reported is None:
            return replica
        base = wanted.base
        if not _has_base(replica.reported, wanted):
            body = {"generation": base.generation, "settings": base.settings}
            replica = await self._put(namespace, replica, body, fence)
        if wanted.limited is not None and _can_be_limited(replica.reported, base):
            body = {"generation": base.generation, "settings": wanted.limited, "seconds": OVERRIDE_TTL_SECONDS}
            replica = await self._put(namespace, replica, body, fence)
        return replica

    async def _put(
        self, namespace: str, replica: Replica, body: Mapping[str, Any], fence: Callable[[], None]
    ) -> Replica:
        limited = "seconds" in body
        fence()
        try:
            reported = _reported(await self._request(namespace, replica, "PUT", "settings", body))
        except StageError as error:
            self._telemetry.pushes.labels("failed").inc()
            log.warning("%s/%s: did not take its settings: %s", namespace, replica.name, error)
            return replica
        self._telemetry.pushes.labels("limited" if limited else "confirmed").inc()
        news = replica.reported is None or replica.reported.settings != reported.settings or not limited
        words = f"for {OVERRIDE_TTL_SECONDS:g} s at a time" if limited else "for good"
        log.log(
            logging.INFO if news else logging.DEBUG,
            "%s/%s: settings of generation %d are in force, %s",
            *(namespace, replica.name, reported.generation, words),
        )
        return msgspec.structs.replace(replica, reported=reported)

    async def _request(self, namespace: str, replica: Replica, method: str, path: str, body: Any = None) -> bytes:
        async with self._slots:
            try:
                async with asyncio.timeout(TIMEOUT):
                    if self._access is Access.PROXY:
                        status, answer = await self._through_proxy(namespace, replica, method, path, body)
                    else:
                        status, answer = await self._directly(replica, method, path, body)
            except TimeoutError:
                raise StageError(f"no answer in {TIMEOUT:g} s") from None
            except (ApiError, httpx.HTTPError) as error:
                raise StageError(str(error) or type(error).__name__) from None
        if status != 200:
            raise StageError(f"HTTP status {status}: {answer[:300].decode(errors='replace').strip()}")
        return answer

    async def _directly(self, replica: Replica, method: str, path: str, body: Any) -> tuple[int, bytes]:
        host = f"[{replica.address}]" if ":" in replica.address else replica.address
        content = None if body is None else json.dumps(body)
        async with self._http.stream(method, f"http://{host}:{_port(replica)}/{path}", content=content) as answer:
            data = bytearray()
            async for chunk in answer.aiter_bytes():
                data += chunk
                if len(data) > MAX_ANSWER:
                    raise StageError(f"the answer is larger than {MAX_ANSWER} bytes")
            return answer.status_code, bytes(data)

    async def _through_proxy(
        self, namespace: str, replica: Replica, method: str, path: str, body: Any
    ) -> tuple[int, bytes]:
        proxy = f"{POD.path(namespace)}/{replica.name}:{_port(replica)}/proxy/{path}"
        headers = {"Content-Type": "application/json"}
        status, answer, _ = await self._api.request(method, proxy, body=body, headers=headers, seconds=TIMEOUT)
        return status, answer


def _port(replica: Replica) -> int:
    return GUEST_ADMIN_PORT if replica.guest else ADMIN_PORT


def _reported(data: bytes) -> Reported:
    try:
        return msgspec.json.decode(data, type=Reported)
    except msgspec.MsgspecError as error:
        raise StageError(f"the answer is not a report of settings: {error}") from None


def _has_base(reported: Reported, wanted: Wanted) -> bool:
    """Whether nothing is to be told but limited settings.

    Newer settings than the wanted ones are left alone: the next plan counts on from them.
    """
    if reported.generation != wanted.base.generation:
        return reported.generation > wanted.base.generation
    thawed = reported.seconds is None or wanted.limited is not None
    return thawed and reported.lasting == wanted.base.settings


def _can_be_limited(reported: Reported | None, base: Base) -> bool:
    return reported is not None and reported.can_try and reported.generation == base.generation
