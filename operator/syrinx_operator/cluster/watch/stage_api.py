"""Client of the stages' settings and admin ports: live settings and metrics of replicas."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, Self

import httpx
import msgspec
from msgspec import Struct, structs

from syrinx_operator.cluster.objects.kinds import POD
from syrinx_operator.cluster.objects.names import place
from syrinx_operator.cluster.objects.state import STAGES, Replica, Settings
from syrinx_operator.cluster.watch.api import Api, ApiError
from syrinx_operator.cluster.watch.telemetry import Telemetry
from syrinx_operator.tuner.builder import OVERRIDE_TTL_SECONDS
from syrinx_stages.contract.settings import TOKEN_HEADER, ReportedSettings

log = logging.getLogger(__name__)

TIMEOUT: Final = 3.0
"""Seconds per request to a replica."""
MAX_CONCURRENT_REQUESTS: Final = 16
MAX_ERROR_BYTES: Final = 500
MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024


class StageError(Exception):
    """A request to a replica failed; the message says why. `answer` is what the replica said, if it did."""

    def __init__(self, message: str, answer: str = "") -> None:
        super().__init__(message)
        self.answer = answer


class StageAccess(StrEnum):
    """How the operator connects to the stages' admin and settings ports."""

    DIRECT = "direct"
    """To the pods' addresses."""
    PROXY = "proxy"
    """Through the API server's pod proxy, from outside the cluster."""


class DesiredSettings(Struct, frozen=True):
    """The settings that a replica should have in force."""

    base: Settings
    overrides: Mapping[str, Any] = {}
    """Temporary settings, which expire unless they are renewed; empty for the base alone."""


class StageApi:
    """Sends requests to replicas, directly or through the API server's pod proxy. Use as `async with`."""

    def __init__(self, api: Api, access: StageAccess, telemetry: Telemetry) -> None:
        self._api = api
        self._access = access
        self._telemetry = telemetry
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)
        # Pods are inside the cluster: never use a proxy from the environment.
        limits = httpx.Limits(max_connections=MAX_CONCURRENT_REQUESTS)
        self._http = httpx.AsyncClient(timeout=TIMEOUT, trust_env=False, limits=limits)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def read_settings(self, namespace: str, replicas: Iterable[Replica], token: str) -> tuple[Replica, ...]:
        """Returns the replicas with their reported settings; those that are not ready have the reason instead.

        Those that fail have neither.
        """
        return tuple(await asyncio.gather(*(self._read(namespace, replica, token) for replica in replicas)))

    async def push_settings(
        self,
        namespace: str,
        replicas: Iterable[Replica],
        desired: Callable[[Replica], DesiredSettings | None],
        fence: Callable[[], None],
        token: str,
    ) -> tuple[Replica, ...]:
        """Sends each replica the settings it does not have yet; returns the replicas with what they report.

        `fence` is called before each write; its exceptions propagate.
        """
        pushes = (self._push(namespace, each, desired(each), fence, token) for each in replicas)
        return tuple(await asyncio.gather(*pushes))

    async def scrape(self, namespace: str, replica: Replica) -> str:
        """Returns a replica's metrics in the Prometheus text format. Raises StageError."""
        return (await self._request(namespace, replica, "GET", place(replica).admin_port, "metrics")).decode(
            errors="replace"
        )

    async def _read(self, namespace: str, replica: Replica, token: str) -> Replica:
        if replica.terminating or replica.component not in STAGES:
            return replica
        if not replica.ready:
            return structs.replace(replica, unready=await self._unready(namespace, replica))
        try:
            return await self._settings(namespace, replica, token, "GET")
        except StageError as error:
            fields = _log_fields(namespace, replica)
            log.info("%s/%s: cannot read its settings: %s", namespace, replica.name, error, extra=fields)
            return replica

    async def _unready(self, namespace: str, replica: Replica) -> str:
        """Returns why a replica is not ready; empty if it does not run or does not say."""
        if not replica.address or replica.problem:
            return ""
        try:
            await self._request(namespace, replica, "GET", place(replica).admin_port, "readyz")
        except StageError as error:
            return error.answer.partition("\n")[0]
        return ""

    async def _push(
        self, namespace: str, replica: Replica, desired: DesiredSettings | None, fence: Callable[[], None], token: str
    ) -> Replica:
        if desired is None or (reported := replica.reported) is None:
            return replica
        generation = desired.base.generation
        # Those that the replica knows: its image may be of an earlier version.
        settings = {name: value for name, value in desired.base.settings.items() if name in reported.base}
        # Sending the base again ends overrides that are no longer desired.
        must_end_overrides = reported.seconds is not None and not desired.overrides
        is_other = must_end_overrides or any(reported.base[name] != value for name, value in settings.items())
        # A newer generation than the desired one is left alone: the next plan continues counting from it.
        if reported.generation < generation or (reported.generation == generation and is_other):
            body = {"generation": generation, "settings": settings}
            replica = await self._put(namespace, replica, body, fence, token)
        if desired.overrides and replica.reported and replica.reported.generation == generation:
            body = {"generation": generation, "settings": desired.overrides, "seconds": OVERRIDE_TTL_SECONDS}
            replica = await self._put(namespace, replica, body, fence, token)
        return replica

    async def _put(
        self, namespace: str, replica: Replica, body: Mapping[str, Any], fence: Callable[[], None], token: str
    ) -> Replica:
        is_override = "seconds" in body
        fence()
        try:
            changed = await self._settings(namespace, replica, token, "PUT", body)
        except StageError as error:
            self._telemetry.settings_pushes.labels("failed").inc()
            fields = _log_fields(namespace, replica)
            log.warning("%s/%s: cannot change its settings: %s", namespace, replica.name, error, extra=fields)
            return replica
        self._telemetry.settings_pushes.labels("override" if is_override else "confirmed").inc()
        before, reported = replica.reported, changed.reported
        is_renewal = is_override and before and reported and before.settings == reported.settings
        log.log(
            logging.DEBUG if is_renewal else logging.INFO,
            "%s/%s: settings generation %d is in force%s",
            *(namespace, replica.name, body["generation"]),
            f" with overrides for {OVERRIDE_TTL_SECONDS:g} s" if is_override else "",
            extra=_log_fields(namespace, replica),
        )
        return changed

    async def _settings(self, namespace: str, replica: Replica, token: str, method: str, body: Any = None) -> Replica:
        """Returns the replica with the settings that it reports. Raises StageError."""
        answer = await self._request(
            namespace, replica, method, place(replica).settings_port, f"settings/{replica.component}", body, token
        )
        try:
            return structs.replace(replica, reported=msgspec.json.decode(answer, type=ReportedSettings))
        except msgspec.MsgspecError as error:
            raise StageError(f"the answer is no settings report: {error}") from None

    async def _request(
        self, namespace: str, replica: Replica, method: str, port: int, path: str, body: Any = None, token: str = ""
    ) -> bytes:
        headers = {"Content-Type": "application/json", **({TOKEN_HEADER: token} if token else {})}
        async with self._slots:
            try:
                async with asyncio.timeout(TIMEOUT):
                    if self._access is StageAccess.PROXY:
                        proxy = f"{POD.path(namespace)}/{replica.name}:{port}/proxy/{path}"
                        status, answer, _ = await self._api.request(
                            method, proxy, body=body, headers=headers, seconds=TIMEOUT
                        )
                    else:
                        host = f"[{replica.address}]" if ":" in replica.address else replica.address
                        url = f"http://{host}:{port}/{path}"
                        status, answer = await self._request_direct(method, url, body, headers)
            except TimeoutError:
                raise StageError(f"no answer in {TIMEOUT:g} s") from None
            except (ApiError, httpx.HTTPError) as error:
                raise StageError(str(error) or type(error).__name__) from None
        if status != 200:
            text = answer[:MAX_ERROR_BYTES].decode(errors="replace").strip()
            raise StageError(f"HTTP status {status}: {text}", text)
        return answer

    async def _request_direct(self, method: str, url: str, body: Any, headers: Mapping[str, str]) -> tuple[int, bytes]:
        content = None if body is None else msgspec.json.encode(body)
        async with self._http.stream(method, url, content=content, headers=headers) as answer:
            data = bytearray()
            async for chunk in answer.aiter_bytes():
                data += chunk
                if len(data) > MAX_ANSWER_BYTES:
                    raise StageError(f"the answer is larger than {MAX_ANSWER_BYTES} bytes")
            return answer.status_code, bytes(data)


def _log_fields(namespace: str, replica: Replica) -> dict[str, str]:
    """Returns the `extra` of log records that concern a replica."""
    return {"namespace": namespace, "object": replica.name}
