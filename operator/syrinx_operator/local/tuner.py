"""The tuner beside `syrinx up`: looks, decides, remembers in files, applies. A thin shell."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import msgspec

from syrinx_operator import __version__
from syrinx_operator.local import admin, tuning_files
from syrinx_operator.local.admin import StageReply
from syrinx_operator.local.events import Notice, Observer
from syrinx_operator.local.machine import describe
from syrinx_operator.local.recent import slo_reports
from syrinx_operator.local.supervisor import Member
from syrinx_operator.resource.knobs import Identity, Stage, live_settings, with_setting
from syrinx_operator.resource.rules import violations
from syrinx_operator.resource.spec import TTSPipeline
from syrinx_operator.resource.stage_config import Stage as Process
from syrinx_operator.resource.stage_config import engine_suffix, model_generation
from syrinx_operator.resource.tuning_status import State
from syrinx_operator.tuner.decide import Assignment, assignment
from syrinx_operator.tuner.evidence import ReplicaStats
from syrinx_operator.tuner.policy import policy_of
from syrinx_operator.tuner.runner import Observation, Tuner

LATELY_SECONDS = 60.0
"""What `syrinx tune` tells of how listeners fare; one interval, if that is longer."""


class LocalTuner:
    """Tunes a pipeline of this machine. Whatever goes wrong here is told, and never disturbs what is served."""

    def __init__(self, pipeline: TTSPipeline, directory: Path, observe: Observer) -> None:
        """Takes up what `directory` remembers of the pipeline. `observe` is told what is decided."""
        self._pipeline = pipeline
        self._policy = policy_of(pipeline.spec)
        self._directory = directory
        self._observe = observe
        self._identity = identity_of(pipeline)
        self._tuner = Tuner(tuning_files.audit_log(directory))
        self._trouble = ""
        self._state = self._remembered()

    def start_with(self) -> TTSPipeline:
        """The resource with its knobs as they were chosen before; as it is, if it has become another one since."""
        base = assignment(self._policy, self._state).base
        chosen = msgspec.structs.replace(self._pipeline, spec=with_setting(self._pipeline.spec, base))
        return self._pipeline if violations(chosen) else chosen

    async def run(self, members: Sequence[Member]) -> None:
        """Looks again and again until it is cancelled."""
        async with admin.client() as http:
            while True:
                seconds = await self._look_safely(http, members)
                await asyncio.sleep(seconds)

    async def _look_safely(self, http: httpx.AsyncClient, members: Sequence[Member]) -> float:
        """Seconds until the next look."""
        try:
            return await self._look(http, members)
        except Exception as error:  # Serving goes on, whatever it is.
            self._tell_trouble(f"this look is left out: {type(error).__name__}: {error}")
            with contextlib.suppress(OSError):
                self._save(msgspec.structs.replace(self._state, message=self._trouble[:256]), datetime.now(UTC))
            return self._policy.interval

    async def _look(self, http: httpx.AsyncClient, members: Sequence[Member]) -> float:
        answers = await admin.query_stages(http, (member for member in members if member.is_ready))
        seen, now = observe(members, answers, self._identity), datetime.now(UTC)
        decision = self._tuner.step(self._pipeline.name, self._policy, self._state, seen, now)
        self._save(decision.state, now)  # Before anything follows from it.
        for event in decision.events:
            self._observe(Notice(event.message, warning=event.kind == "Warning"))
        trouble = ""
        if self._policy.mode == "Auto" and not self._policy.paused:
            trouble = await self._apply(http, members, answers, assignment(self._policy, self._state))
        self._tell_trouble(trouble)
        return decision.requeue_after

    async def _apply(
        self, http: httpx.AsyncClient, members: Sequence[Member], answers: Mapping[str, StageReply], wanted: Assignment
    ) -> str:
        """Sets what differs; says what went wrong, if anything did."""
        work = []
        for member in _workers(members):
            stage = Stage(member.stage.value)
            base, limited = live_settings(wanted.base, stage), wanted.override(stage, member.name)
            reported = answers[member.name].reported if member.name in answers else None
            if reported is None:
                member.save_settings({"settings": base})  # It may be about to start.
            else:
                trial = None if limited is None else live_settings(limited, stage)
                work.append(admin.put_settings(http, member, reported, base, trial))
        return "; ".join(filter(None, await asyncio.gather(*work)))

    def _remembered(self) -> State:
        try:
            found = tuning_files.load(self._directory)
        except tuning_files.TuningMemoryError as error:
            self._observe(Notice(f"what was learned before is lost, and tuning starts anew: {error}", warning=True))
            return State()
        state = found.state if found else State()
        if state.identity != self._identity:  # What was chosen for another machine is no start on this one.
            return msgspec.structs.replace(state, chosen=None, last_good=None)
        return state

    def _save(self, state: State, now: datetime) -> None:
        wanted = self._pipeline.spec.slo.ttfa
        window = now - timedelta(seconds=max(LATELY_SECONDS, self._policy.interval))
        evidence = self._tuner.evidence(self._pipeline.name, self._policy, None, window, now)
        memory = tuning_files.TuningMemory(
            state=state,
            observed_at=now,
            requested=self._policy.requested,
            objectives=wanted,
            slo=slo_reports(wanted, evidence),
        )
        tuning_files.save(self._directory, memory)
        self._state = state

    def _tell_trouble(self, trouble: str) -> None:
        """Once, however long it lasts."""
        if trouble and trouble != self._trouble:
            self._observe(Notice(trouble, warning=True))
        self._trouble = trouble


def identity_of(pipeline: TTSPipeline) -> Identity:
    """What is served, by which version, on what."""
    spec, machine = pipeline.spec, describe()
    devices = f"talker {spec.talker.device or 'cpu'}, codec {spec.codec.device or 'cpu'}"
    return Identity(
        model=model_generation(spec, __version__),
        image=f"syrinx {__version__}",
        device=f"{devices}{engine_suffix(spec)}; {machine.cpu}, {machine.cores} cores"[:256],
    )


def observe(members: Iterable[Member], answers: Mapping[str, StageReply], identity: Identity) -> Observation:
    """What the stages said, as the tuner takes it. One that is not ready, or does not answer, is no time for trials."""
    every = list(members)
    silent = [f"{member.name} is not ready" for member in every if not member.is_ready]
    silent += [answer.problem for answer in answers.values() if answer.problem]
    gateways = [answers.get(member.name) for member in every if member.stage is Process.GATEWAY]
    return Observation(
        snapshots=tuple(answer.snapshot for answer in answers.values() if answer.snapshot is not None),
        replicas=tuple(_worker(member, answers.get(member.name)) for member in _workers(every)),
        identity=identity,
        disruption="; ".join(silent),
        problem="" if any(each and each.snapshot for each in gateways) else "the gateway does not answer",
    )


def _workers(members: Iterable[Member]) -> list[Member]:
    return [member for member in members if member.stage is not Process.GATEWAY]


def _worker(member: Member, answer: StageReply | None) -> ReplicaStats:
    reported = answer.reported if answer else None
    return ReplicaStats(
        name=member.name,
        stage=Stage(member.stage.value),
        ready=member.is_ready,
        restarts=member.restarts,
        settings=reported.settings if reported else None,
    )
