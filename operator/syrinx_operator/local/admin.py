"""The admin ports of a local pipeline's stages: their metrics, and the settings that they have in force."""

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

TIMEOUT = 3.0
"""Seconds that one request may take."""


class Reported(Struct, frozen=True):
    """What a stage answers to `GET /settings`."""

    generation: int
    """Of the base."""
    settings: dict[str, Any]
    """In force."""
    base: dict[str, Any]
    """What it returns to after settings for a limited time."""
    seconds: float | None = None
    """How long these last; None without any."""


class StageReply(Struct, frozen=True, kw_only=True):
    """What a stage said in one look; without what it did not say."""

    snapshot: Snapshot | None = None
    reported: Reported | None = None
    problem: str = ""


def client() -> httpx.AsyncClient:
    """A client for this machine's stages, never through a proxy that the environment names."""
    return httpx.AsyncClient(timeout=TIMEOUT, trust_env=False)


async def query_stages(http: httpx.AsyncClient, members: Iterable[Member]) -> dict[str, StageReply]:
    """What each stage says, by its name."""
    asked = list(members)
    answers = await asyncio.gather(*(_ask(http, member) for member in asked))
    return {member.name: answer for member, answer in zip(asked, answers, strict=True)}


async def put_settings(
    http: httpx.AsyncClient,
    member: Member,
    reported: Reported,
    base: Mapping[str, Any],
    limited: Mapping[str, Any] | None,
) -> str:
    """Sets what differs, and renews what is limited; says what went wrong, if anything did.

    The base is written where a restarted process finds it before the running one gets it.
    """
    generation = reported.generation
    try:
        if _differ(reported.base, base) or (limited is None and reported.seconds is not None):
            generation += 1
            body = {"generation": generation, "settings": base}
            member.save_settings(body)
            await _put(http, member, body)
        if limited is not None:
            seconds = OVERRIDE_TTL_SECONDS
            await _put(http, member, {"generation": generation, "settings": limited, "seconds": seconds})
    except (httpx.HTTPError, OSError) as error:
        return f"{member.name} did not take its settings: {str(error) or type(error).__name__}"
    return ""


async def _ask(http: httpx.AsyncClient, member: Member) -> StageReply:
    counted = reported = None
    problem = ""
    try:
        text = (await _get(http, member, "metrics")).text
        counted = parse_metrics(member.name, member.stage.value, datetime.now(UTC), text)
    except (httpx.HTTPError, ValueError) as error:
        problem = f"{member.name} tells no metrics: {str(error) or type(error).__name__}"
    try:
        if member.stage is not Stage.GATEWAY:
            reported = msgspec.json.decode((await _get(http, member, "settings")).content, type=Reported)
    except (httpx.HTTPError, msgspec.MsgspecError) as error:
        problem = f"{member.name} tells no settings: {str(error) or type(error).__name__}"
    return StageReply(snapshot=counted, reported=reported, problem=problem)


async def _get(http: httpx.AsyncClient, member: Member, path: str) -> httpx.Response:
    return (await http.get(f"{member.admin_url}/{path}")).raise_for_status()


async def _put(http: httpx.AsyncClient, member: Member, body: Mapping[str, Any]) -> None:
    answer = await http.put(f"{member.admin_url}/settings", json=dict(body))
    if answer.is_error:
        raise httpx.HTTPError(f"{answer.status_code}: {answer.text[:200].strip()}")


def _differ(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return any(there.get(name) != value for name, value in wanted.items())
