"""Client of the admin ports of a local pipeline's stages: metrics and settings."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import httpx
import msgspec
from msgspec import Struct

from syrinx_operator.local.supervisor import Member
from syrinx_operator.resource.stage_config import Stage
from syrinx_operator.tuner.decide import OVERRIDE_TTL_SECONDS
from syrinx_operator.tuner.snapshot import Snapshot, parse_metrics
from syrinx_stages.contract.settings import ReportedSettings

TIMEOUT = 3.0
"""Timeout of a request in seconds."""


class StageReply(Struct, frozen=True, kw_only=True):
    """Metrics and settings of a stage, without what it did not report."""

    snapshot: Snapshot | None = None
    reported: ReportedSettings | None = None
    problem: str = ""


def client() -> httpx.AsyncClient:
    """Returns a client for local stages, which ignores the proxies of the environment."""
    return httpx.AsyncClient(timeout=TIMEOUT, trust_env=False)


async def query_stages(http: httpx.AsyncClient, members: Iterable[Member]) -> dict[str, StageReply]:
    """Returns the reports of stages by name."""
    polled = list(members)
    reports = await asyncio.gather(*(_poll(http, member) for member in polled))
    return {member.name: report for member, report in zip(polled, reports, strict=True)}


async def put_settings(
    http: httpx.AsyncClient,
    member: Member,
    reported: ReportedSettings,
    base: Mapping[str, Any],
    temporary: Mapping[str, Any] | None,
) -> str:
    """Applies changed base settings and renews temporary settings. Returns an error message, or "".

    The base is saved for restarts before the running process gets it.
    """
    generation = reported.generation
    try:
        if _differ(reported.base, base) or (temporary is None and reported.seconds is not None):
            generation += 1
            body = {"generation": generation, "settings": base}
            member.save_settings(body)
            await _put(http, member, body)
        if temporary is not None:
            seconds = OVERRIDE_TTL_SECONDS
            await _put(http, member, {"generation": generation, "settings": temporary, "seconds": seconds})
    except (httpx.HTTPError, OSError) as error:
        return f"{member.name} did not apply its settings: {str(error) or type(error).__name__}"
    return ""


async def _poll(http: httpx.AsyncClient, member: Member) -> StageReply:
    metrics = reported = None
    problem = ""
    try:
        text = (await _get(http, member, "metrics")).text
        metrics = parse_metrics(member.name, member.stage.value, datetime.now(UTC), text)
    except (httpx.HTTPError, ValueError) as error:
        problem = f"{member.name} reports no metrics: {str(error) or type(error).__name__}"
    try:
        if member.stage is not Stage.GATEWAY:
            reported = msgspec.json.decode((await _get(http, member, "settings")).content, type=ReportedSettings)
    except (httpx.HTTPError, msgspec.MsgspecError) as error:
        problem = f"{member.name} reports no settings: {str(error) or type(error).__name__}"
    return StageReply(snapshot=metrics, reported=reported, problem=problem)


async def _get(http: httpx.AsyncClient, member: Member, path: str) -> httpx.Response:
    return (await http.get(f"{member.admin_url}/{path}")).raise_for_status()


async def _put(http: httpx.AsyncClient, member: Member, body: Mapping[str, Any]) -> None:
    answer = await http.put(f"{member.admin_url}/settings", json=dict(body))
    if answer.is_error:
        raise httpx.HTTPError(f"{answer.status_code}: {answer.text[:200].strip()}")


def _differ(current: Mapping[str, Any], desired: Mapping[str, Any]) -> bool:
    return any(current.get(name) != value for name, value in desired.items())
