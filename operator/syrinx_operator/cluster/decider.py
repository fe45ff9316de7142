"""Shows each look at a pipeline to the tuner. A thin shell around `tuning` and `measure`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from syrinx_operator.cluster.conditions import Problem
from syrinx_operator.cluster.measure import Look, Meter, measured, window
from syrinx_operator.cluster.plan import Plan
from syrinx_operator.cluster.state import Component, Measured, Observed, Owner, Replica
from syrinx_operator.cluster.tuning import Tuning, identity, moving, workers
from syrinx_operator.resource.spec import TTSPipeline
from syrinx_operator.tuner.decide import Decision
from syrinx_operator.tuner.runner import Observation, Tuner
from syrinx_operator.tuner.telemetry import TunerTelemetry

TRIAL_SCRAPE_SECONDS: Final = 1.0
"""Between two looks at the metrics at least, while something is tried."""


class Shown(Struct, frozen=True, kw_only=True):
    """One look at a pipeline, after all was done that followed of the last one."""

    pipeline: TTSPipeline
    owner: Owner
    observed_generation: int | None
    """Of the resource that was carried out last."""
    tuning: Tuning
    plan: Plan
    found: Observed
    """As it was before this look set anything."""
    observed: Observed
    problems: Sequence[Problem]

    @property
    def name(self) -> str:
        """Names the pipeline in the audit log."""
        return f"{self.owner.namespace}/{self.owner.name}"


class Decider:
    """Measures and decides for pipelines. Remembers counters alone: lost, they build up again within minutes."""

    def __init__(
        self, meter: Meter, tuner: Tuner, telemetry: TunerTelemetry, scrape: Callable[[str, Replica], Awaitable[str]]
    ) -> None:
        """`scrape` returns the `/metrics` of a replica of a namespace; it may raise."""
        self._meter = meter
        self._tuner = tuner
        self._telemetry = telemetry
        self._scrape = scrape
        self._last: dict[str, Measured] = {}

    async def decide(self, shown: Shown, clock: Callable[[], datetime]) -> tuple[Decision, Measured | None]:
        """What follows of a look, and what the status says of the last minutes (None with tuning Off).

        The status is to remember the decision; the next look carries it out.
        """
        look = await self._look(shown)
        now = clock()
        return self._decide(shown, look, now), self._measured(shown, look, now)

    def forget(self, namespace: str, name: str) -> None:
        """A pipeline is gone."""
        self._tuner.forget(f"{namespace}/{name}")
        self._last.pop(f"{namespace}/{name}", None)
        self.hide(namespace, name)

    def hide(self, namespace: str, name: str) -> None:
        """A pipeline is another operator's, which has metrics of it."""
        self._telemetry.forget((namespace, name))

    async def _look(self, shown: Shown) -> Look | None:
        """What the stages have counted. While something is tried, at every look: it was asked for when it is due."""
        state, namespace = shown.tuning.state, shown.owner.namespace
        changing = state.trial is not None or state.promotion is not None
        return await self._meter.look(
            shown.pipeline,
            shown.owner,
            shown.observed.replicas,
            lambda replica: self._scrape(namespace, replica),
            every=TRIAL_SCRAPE_SECONDS if changing else None,
            tuned=None if state.trial is None else state.trial.knob.stage,
        )

    def _decide(self, shown: Shown, look: Look | None, now: datetime) -> Decision:
        tuning, devices = shown.tuning, self._tuner.devices(shown.name)
        seen = Observation(
            snapshots=() if look is None else look.snapshots,
            scrape_interval=0.0 if look is None else look.scraped_every,
            problem="" if look is None else look.problem,
            # What replicas did until now, they did under the settings that they had before this look.
            replicas=workers(shown.found),
            identity=identity(shown.pipeline, shown.plan, shown.observed, devices, tuning.state.identity),
            disruption=moving(shown.plan, shown.observed, shown.problems, shown.observed_generation, shown.owner),
        )
        decision = self._tuner.step(shown.name, tuning.policy, tuning.state, seen, now)
        self._telemetry.update(
            (shown.owner.namespace, shown.owner.name),
            base=tuning.assignment.base,
            state=decision.state,
            events=decision.events,
            metrics_until=max((each.time for each in seen.snapshots if each.stage == Component.GATEWAY), default=None),
        )
        return decision

    def _measured(self, shown: Shown, look: Look | None, now: datetime) -> Measured | None:
        """It changes when something new is known, not with the clock."""
        if look is None:
            self._last.pop(shown.name, None)
            return None
        if look.snapshots or look.problem or shown.name not in self._last:
            policy = shown.tuning.policy
            evidence = self._tuner.evidence(shown.name, policy, None, now - timedelta(seconds=window(policy)), now)
            self._last[shown.name] = measured(look, policy, evidence)
        return self._last[shown.name]
