"""Runs the tuner for a local pipeline: collects metrics, applies decisions, and saves the state in files."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import msgspec
from msgspec import Struct

from syrinx_operator import __version__
from syrinx_operator.local import tuning_files
from syrinx_operator.local.events import Event, Observer
from syrinx_operator.local.machine import describe
from syrinx_operator.local.supervisor import Child
from syrinx_operator.observed.counters import Observation
from syrinx_operator.observed.evidence import ReplicaStats, slo_statuses
from syrinx_operator.observed.snapshot import Snapshot, parse_metrics
from syrinx_operator.resource.checks.rules import violations
from syrinx_operator.resource.knobs import Identity, live_settings, with_setting
from syrinx_operator.resource.resolve import resolve
from syrinx_operator.resource.spec import TTSPipeline
from syrinx_operator.resource.stage_config import engine_suffix, model_generation
from syrinx_operator.resource.state.tuning_status import State
from syrinx_operator.tuner.builder import OVERRIDE_TTL_SECONDS
from syrinx_operator.tuner.decide import Assignment, assignment
from syrinx_operator.tuner.policy import policy_of
from syrinx_operator.tuner.runner import Tuner
from syrinx_stages.contract.settings import ReportedSettings
from syrinx_stages.contract.stages import Stage

SLO_WINDOW_SECONDS = 60.0
"""Window of the latencies that `syrinx tune` shows; one interval, if that is longer."""
REQUEST_SECONDS = 3.0


class StageReply(Struct, frozen=True):
    """Metrics and settings of a stage, without what it did not report."""

    snapshot: Snapshot | None = None
    reported: ReportedSettings | None = None
    problem: str = ""


class LocalTuner:
    """Tunes a local pipeline. Errors are reported and do not affect serving."""

    def __init__(self, pipeline: TTSPipeline, directory: Path, observe: Observer) -> None:
        """Loads the saved state from `directory`. `observe` receives notices of decisions."""
        self._pipeline = pipeline
        self._policy = policy_of(resolve(pipeline))
        self._directory = directory
        self._observe = observe
        self._identity = identity_of(pipeline)
        self._tuner = Tuner(tuning_files.audit_log(directory))
        tuning_files.save_resource(directory, pipeline)
        self._error = ""
        self._state = self._load()

    def with_chosen_settings(self) -> TTSPipeline:
        """Returns the pipeline with the settings chosen earlier, if its rules still allow them."""
        base = assignment(self._policy, self._state).base
        chosen = msgspec.structs.replace(self._pipeline, spec=with_setting(self._pipeline.spec, base))
        return self._pipeline if violations(chosen) else chosen

    async def run(self, children: Sequence[Child], settings_headers: Mapping[str, str]) -> None:
        """Evaluates periodically until it is cancelled. `settings_headers` authorizes requests for settings."""
        async with httpx.AsyncClient(timeout=REQUEST_SECONDS, trust_env=False, headers=settings_headers) as http:
            while True:
                seconds = await self._try_step(http, children)
                await asyncio.sleep(seconds)

    async def _try_step(self, http: httpx.AsyncClient, children: Sequence[Child]) -> float:
        try:
            return await self._step(http, children)
        except Exception as error:  # Serving must continue.
            self._report_error(f"this evaluation is skipped: {type(error).__name__}: {error}")
            with contextlib.suppress(OSError):
                self._save(msgspec.structs.replace(self._state, message=self._error[:256]), datetime.now(UTC))
            return self._policy.interval

    async def _step(self, http: httpx.AsyncClient, children: Sequence[Child]) -> float:
        answers = await asyncio.gather(*(_query(http, child) for child in children))
        replies = {child.name: reply for child, reply in zip(children, answers, strict=True)}
        observation, now = observe(children, replies, self._identity), datetime.now(UTC)
        decision = self._tuner.step(self._pipeline.name, self._policy, self._state, observation, now)
        self._save(decision.state, now)  # Saved before it takes effect.
        for event in decision.events:
            self._observe(Event("warning" if event.kind == "Warning" else "notice", "tuner", event.message))
        error = ""
        if self._policy.mode == "Auto" and not self._policy.paused:
            error = await self._apply(http, children, replies, assignment(self._policy, self._state))
        self._report_error(error)
        return decision.requeue_after

    async def _apply(
        self, http: httpx.AsyncClient, children: Sequence[Child], replies: Mapping[str, StageReply], desired: Assignment
    ) -> str:
        requests = []
        for child in children:
            base, temporary = _settings(desired, child.stage)
            reported = replies[child.name].reported
            if reported is not None:
                requests.append(_put_settings(http, child, reported, base, temporary))
            elif base:
                child.save_settings({"settings": base})  # It may be starting.
        return "; ".join(filter(None, await asyncio.gather(*requests)))

    def _load(self) -> State:
        try:
            found = tuning_files.load(self._directory, self._report_loss)
        except tuning_files.TuningMemoryError as error:
            self._report_loss(str(error))
            return State()
        state = found.state if found else State()
        # Settings of another machine or model do not apply.
        is_same = state.identity == self._identity
        return state if is_same else msgspec.structs.replace(state, chosen=None)

    def _report_loss(self, message: str) -> None:
        self._observe(Event("warning", "tuner", f"the saved state of tuning is lost: {message}"))

    def _save(self, state: State, now: datetime) -> None:
        objectives = self._pipeline.spec.slo.ttfa
        window = now - timedelta(seconds=max(SLO_WINDOW_SECONDS, self._policy.interval))
        evidence = self._tuner.evidence(self._pipeline.name, self._policy, window, now)
        memory = tuning_files.TuningMemory(
            state=state,
            observed_at=now,
            requested=self._policy.requested,
            objectives=objectives,
            slo=slo_statuses(objectives, evidence),
        )
        tuning_files.save(self._directory, memory)
        self._state = state

    def _report_error(self, error: str) -> None:
        if error and error != self._error:
            self._observe(Event("warning", "tuner", error))
        self._error = error


def identity_of(pipeline: TTSPipeline) -> Identity:
    """Returns the model, version and device that settings are valid for."""
    spec, resolved, machine = pipeline.spec, resolve(pipeline), describe()
    devices = f"talker {resolved.talker.device}, codec {resolved.codec.device}"
    return Identity(
        model=model_generation(spec, __version__),
        image=f"syrinx {__version__}",
        device=f"{devices}{engine_suffix(spec)}; {machine.cpu}, {machine.cores} cores"[:256],
    )


def observe(children: Sequence[Child], replies: Mapping[str, StageReply], identity: Identity) -> Observation:
    """Returns the tuner's input. Stages that are not ready or do not respond count as a disruption.

    Standbys are no part of it: they serve only during a disruption.
    """
    children = [child for child in children if not child.is_standby]
    replies = {child.name: replies[child.name] for child in children}
    unavailable = [f"{child.name} is not ready" for child in children if not child.is_ready]
    unavailable += [reply.problem for reply in replies.values() if reply.problem]
    gateways = [replies[child.name] for child in children if child.stage is Stage.GATEWAY]
    replicas = [
        ReplicaStats(
            name=child.name,
            stage=child.stage,
            ready=child.is_ready,
            restarts=child.restarts,
            settings=reported.settings if (reported := replies[child.name].reported) else None,
        )
        for child in children
        if child.stage is not Stage.GATEWAY
    ]
    return Observation(
        snapshots=tuple(reply.snapshot for reply in replies.values() if reply.snapshot is not None),
        replicas=tuple(replicas),
        identity=identity,
        disruption="; ".join(unavailable),
        problem="" if any(gateway.snapshot for gateway in gateways) else "the gateway does not respond",
    )


def _settings(desired: Assignment, stage: Stage) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the base settings that the tuner determines, and the temporary ones; those may be empty."""
    if stage is Stage.GATEWAY:
        return {}, {"arm": desired.label} if desired.label else {}
    return live_settings(desired.base, stage), live_settings(desired.candidate, stage) if desired.candidate else {}


async def _query(http: httpx.AsyncClient, child: Child) -> StageReply:
    snapshot = reported = None
    problem = ""
    if not child.is_ready:
        return StageReply()
    try:
        text = (await http.get(f"{child.admin_url}/metrics")).raise_for_status().text
        snapshot = parse_metrics(child.name, child.stage.value, datetime.now(UTC), text)
    except (httpx.HTTPError, ValueError) as error:
        problem = f"{child.name} reports no metrics: {str(error) or type(error).__name__}"
    try:
        content = (await http.get(child.settings_url or "")).raise_for_status().content
        reported = msgspec.json.decode(content, type=ReportedSettings)
    except (httpx.HTTPError, msgspec.MsgspecError) as error:
        problem = f"{child.name} reports no settings: {str(error) or type(error).__name__}"
    return StageReply(snapshot, reported, problem)


async def _put_settings(
    http: httpx.AsyncClient,
    child: Child,
    reported: ReportedSettings,
    base: Mapping[str, Any],
    temporary: Mapping[str, Any],
) -> str:
    """Applies changed base settings and renews temporary settings. Returns an error message, or "".

    The base is saved for restarts before the running process gets it.
    """
    generation, bodies = reported.generation, []
    is_changed = any(reported.base.get(name) != value for name, value in base.items())
    try:
        if is_changed or (not temporary and reported.seconds is not None):
            generation += 1
            bodies.append({"generation": generation, "settings": base})
            child.save_settings(bodies[0])
        if temporary:
            seconds = OVERRIDE_TTL_SECONDS
            bodies.append({"generation": generation, "settings": temporary, "seconds": seconds})
        for body in bodies:
            answer = await http.put(child.settings_url or "", json=body)
            if answer.is_error:
                raise httpx.HTTPError(f"{answer.status_code}: {answer.text[:200].strip()}")
    except (httpx.HTTPError, OSError) as error:
        return f"{child.name} did not apply its settings: {str(error) or type(error).__name__}"
    return ""
