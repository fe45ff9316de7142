"""What to do next: the tuner's one decision function. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec
from msgspec import Struct

from syrinx_operator.tuner import trial as trials
from syrinx_operator.tuner.evidence import Evidence
from syrinx_operator.tuner.knobs import Knob, Setting, Stage
from syrinx_operator.tuner.policy import Policy
from syrinx_operator.tuner.search import Proposal, ladder, propose
from syrinx_operator.tuner.state import (
    MAX_HISTORY,
    MAX_KNOWLEDGE,
    MAX_QUARANTINE,
    Context,
    Known,
    Phase,
    Promotion,
    Quarantined,
    Recommendation,
    Record,
    Soak,
    State,
    Trial,
    Verdict,
)
from syrinx_operator.tuner.stats import interval
from syrinx_operator.tuner.workload import LEAST_REQUESTS, context, missed, share, together, totals, with_turned

TRIAL_SETTINGS_SECONDS = 60.0
"""How long a limited setting lasts unless it is renewed; at least three looks."""
BREACHES = 3
"""Looks in a row that must find an objective missed before anything is tried."""
TRIALS_A_DAY = 12
"""Under one workload."""
LEAST_RATE = 0.05
"""Requests per second below which a trial would take hours."""
TRIAL_LOOK = 10.0
"""Seconds between two looks at a trial at most."""
LONGEST_COOL_DOWN = timedelta(minutes=30)
LONGEST_QUARANTINE = timedelta(hours=24)
REGRESSION = 0.05
"""Share of requests by which a promoted setting must fall behind what was before to be taken back."""


class Event(Struct, frozen=True, kw_only=True):
    """Something decided: one line of the audit log, and one event of the resource."""

    kind: Literal["Normal", "Warning"] = "Normal"
    reason: str
    """In one CamelCase word: TrialStarted, Promoted, RolledBack, ..."""
    message: str
    data: Mapping[str, Any] = {}
    """For the audit log: what the decision was made from, JSON-encodable by msgspec."""


class Decision(Struct, frozen=True, kw_only=True):
    """What is to be remembered, told, and when to look again. `assignment` says what settings follow."""

    state: State
    events: tuple[Event, ...] = ()
    look_in: float
    """Seconds to the next look."""


class Assignment(Struct, frozen=True, kw_only=True):
    """Which setting each replica shall have in force."""

    base: Setting
    """Of every replica, and of those that start: what the ConfigMap holds."""
    trial: Mapping[Stage, Mapping[str, Setting]] = {}
    """Replicas with a setting for a limited time, renewed at each look: it ends by itself if nobody renews it."""
    everywhere: Mapping[Stage, Setting] = {}
    """The same for every replica of a stage."""

    def of(self, stage: Stage, replica: str) -> Setting | None:
        """A replica's limited setting; None if it has none."""
        return self.trial.get(stage, {}).get(replica, self.everywhere.get(stage))


def decide(policy: Policy, state: State, evidence: Evidence, now: datetime) -> Decision:
    """What follows from what was seen. Never acts on no data; never has two changes in flight.

    `evidence` is of the window that `since(policy, state, now)` asked for, or of as much of it as is known.
    """
    turn = _Turn(policy, state, evidence, now)
    if turn.settle():
        if turn.state.trial is not None:
            turn.try_on()
        elif turn.state.promotion is not None:
            turn.promote_on()
        elif turn.state.soak is not None:
            turn.soak_on()
        else:
            turn.watch()
    return Decision(state=turn.state, events=tuple(turn.events), look_in=turn.look_in)


def assignment(policy: Policy, state: State) -> Assignment:
    """The settings that follow from a state. In modes other than Auto: what the resource asks for."""
    base = _current(policy, state)
    if policy.mode != "Auto" or policy.paused:
        return Assignment(base=base)
    if state.trial is not None:
        stage, period = state.trial.knob.stage, state.trial.period
        if period.everywhere:
            return Assignment(base=base, everywhere={stage: state.trial.candidate})
        return Assignment(base=base, trial={stage: dict.fromkeys(period.candidates, state.trial.candidate)})
    if state.promotion is not None:
        given = dict.fromkeys(state.promotion.replicas, state.promotion.setting)
        return Assignment(base=base, trial={_stage(base, state.promotion.setting): given})
    return Assignment(base=base)


def since(policy: Policy, state: State, now: datetime) -> datetime:
    """From when on the next decision wants to know what happened."""
    if state.trial is not None:
        return state.trial.period.counting or now
    if state.promotion is not None:
        return state.promotion.since
    if state.soak is not None:
        return state.soak.since
    window = now - timedelta(seconds=min(max(10 * policy.interval, 60.0), 300.0))
    return max(window, state.changed) if state.changed is not None else window


def _current(policy: Policy, state: State) -> Setting:
    """What is in force, trials aside."""
    edited = state.spec is not None and state.spec != policy.initial
    if policy.mode != "Auto" or state.chosen is None or edited:
        return policy.initial
    return state.chosen


def _stage(base: Setting, setting: Setting) -> Stage:
    differing = base.differs_from(setting)
    return differing[0].stage if differing else Stage.CODEC


class _Turn:
    """One decision in the making."""

    def __init__(self, policy: Policy, state: State, evidence: Evidence, now: datetime) -> None:
        self.policy = policy
        self.state = state
        self.evidence = evidence
        self.now = now
        self.events: list[Event] = []
        self.look_in = policy.interval

    def settle(self) -> bool:
        """Follows the resource, the image and the GPU; returns whether there is anything to tune now."""
        policy, state = self.policy, self.state
        if state.spec is not None and state.spec != policy.initial:
            self._supersede("the resource was edited: what it asks for is in force")
            self._set(chosen=None, last_good=None, quarantine=(), changed=self.now, breaches=0, recommendation=None)
        elif state.chosen is not None and not self._within_bounds(state.chosen):
            self._supersede("the bounds were edited: what the resource asks for is in force")
            self._set(chosen=None, last_good=None, quarantine=(), changed=self.now, breaches=0, recommendation=None)
        self._set(spec=policy.initial, mode=policy.mode)
        self._follow_identity()
        if policy.mode == "Off":
            self._rest("Off", "nothing is tuned, as asked for")
            return False
        if policy.paused:
            self._supersede("paused")
            self._phase("Paused", "everything stays as it is, as asked for")
            return False
        if policy.mode == "Recommend" and (state.chosen is not None or state.trial is not None):
            self._rest("Watching", "from now on only recommendations: what the resource asks for is in force")
        return True

    # --- watching

    def watch(self) -> None:
        """Counts, and starts a trial once an objective is missed for sure, look after look."""
        evidence = self.evidence
        if evidence.problem:
            self._phase("NoData", evidence.problem)
            return
        self._follow_workload()
        why = missed(self.policy, evidence)
        self._count_breach(bool(why))
        heard = together(totals(evidence.served).values()).requests
        if not heard and not why:
            self._phase("NoData", "no live request was heard lately")
            return
        sure = self.state.breaches >= BREACHES
        proposal = propose(self.policy, self.state, evidence, _current(self.policy, self.state), self.now, missed=sure)
        if not sure and (proposal is None or why):
            self._set(recommendation=None)
            self._phase("Watching", "an objective seems to be missed" if why else self._contentment())
        elif proposal is None:
            self._set(recommendation=None)
            self._phase("Watching", f"{_without_numbers(why)}, but everything was tried under this workload for now")
        elif self.policy.mode == "Recommend":
            self._recommend(proposal, why)
        else:
            self._start(proposal, why)

    def _contentment(self) -> str:
        return "the objectives are met" if self.policy.objectives else "no objective (spec.slo.ttfa): underruns only"

    def _follow_workload(self) -> None:
        found = context(self.evidence, self.state.context)
        if found != self.state.context:
            self._set(context=found, breaches=0)

    def _count_breach(self, breach: bool) -> None:
        """Breaches are counted once an interval, however often is looked."""
        if not breach:
            if self.state.breaches:
                self._set(breaches=0, breached=None)
            return
        last = self.state.breached
        if self.state.breaches < BREACHES and (last is None or self._age(last) >= 0.9 * self.policy.interval):
            self._set(breaches=self.state.breaches + 1, breached=self.now)

    def _recommend(self, proposal: Proposal, why: str) -> None:
        wanted = Recommendation(knob=proposal.knob, setting=proposal.setting, why=proposal.why[:256])
        words = f"{proposal.knob}: {_value(wanted.setting, wanted.knob)} instead of "
        words += f"{_value(self.policy.initial, wanted.knob)} is worth a try"
        known = self.state.recommendation
        if known is None or (known.knob, known.setting) != (wanted.knob, wanted.setting):
            self._set(recommendation=wanted)
            self._tell("Recommended", f"{words}: {why or 'less work'}; {proposal.why}")
        self._phase("Watching", words)

    def _start(self, proposal: Proposal, why: str) -> None:
        hindrance = self._hindrance(proposal)
        wanted = Recommendation(knob=proposal.knob, setting=proposal.setting, why=proposal.why[:256])
        known = self.state.recommendation
        if known is None or (known.knob, known.setting) != (wanted.knob, wanted.setting):
            self._set(recommendation=wanted)
        if hindrance:
            self._phase("Watching", f"a trial of {proposal.knob} waits: {hindrance}")
            return
        current = _current(self.policy, self.state)
        number = self.state.trials + 1
        begun = trials.begin(self.policy, number, proposal, current, self.evidence, self.now)
        self._set(trials=number, trial=begun, recommendation=None, changed=self.now)
        words = f"{proposal.knob}: {_value(current, proposal.knob)} against {_value(proposal.setting, proposal.knob)}"
        self._phase("Trial", words)
        self._tell("TrialStarted", f"trial {number}, {words} ({begun.design}): {why or 'less work'}; {proposal.why}")
        self.look_in = 1.0

    def _hindrance(self, proposal: Proposal) -> str:
        """Why no trial can start now; empty if one can."""
        evidence, state, now = self.evidence, self.state, self.now
        workers = evidence.of(proposal.knob.stage)
        if evidence.moving:
            return evidence.moving
        if state.next_trial is not None and now < state.next_trial:
            return f"cooling down until {state.next_trial:%H:%M:%S}"
        lately = [r for r in state.history if r.context == state.context and self._age(r.at) < 86_400]
        if len(lately) >= TRIALS_A_DAY:
            return f"{TRIALS_A_DAY} trials within a day under this workload are enough"
        asked = together(with_turned(totals(evidence.served), evidence).values()).requests
        if asked < LEAST_REQUESTS or asked / max(evidence.seconds, 1.0) < LEAST_RATE:
            return "too few requests"
        if not workers or not all(worker.ready and worker.settings is not None for worker in workers):
            return f"not every {proposal.knob.stage} is ready"
        if not all(worker.can_try for worker in workers):
            return "the stages' image is too old: it takes no settings for a limited time"
        return ""

    # --- a trial

    def try_on(self) -> None:
        """One look at the trial under way."""
        trial = self._trial()
        workers = self.evidence.of(trial.knob.stage)
        self.look_in = min(self.policy.interval, TRIAL_LOOK)
        wrong = trials.harm(self.policy, trial, self.evidence)
        if wrong:
            self._end(trials.Outcome("RolledBack", wrong))
        elif (
            self.evidence.moving
            or tuple(worker.name for worker in workers)[:256] != trial.period.replicas
            or (tuple(worker.restarts for worker in workers)[:256] != trial.period.restarts)
        ):
            self._waste(self.evidence.moving or "the replicas changed")
        elif trial.period.counting is None:
            self._await_confirmation()
        elif self.evidence.problem or self.evidence.seconds < 0.5 * trial.seconds:
            self._await_data()
        elif trials.due(trial, self.now):
            self._count()
        else:
            self.look_in = min(self.look_in, max(1.0, trial.seconds - self._age(trial.period.counting)))

    def _await_confirmation(self) -> None:
        trial = self._trial()
        workers = self.evidence.of(trial.knob.stage)
        if workers and trials.confirmed(trial, workers):
            wash_out = trials.wash_out(self.policy)
            period = msgspec.structs.replace(trial.period, counting=self.now + timedelta(seconds=wash_out))
            self._set(trial=msgspec.structs.replace(trial, period=period))
            self.look_in = wash_out + 0.1
        elif self._age(trial.period.since) > trials.CONFIRM_SECONDS:
            self._waste("not every replica confirmed its settings")
        else:
            self.look_in = 1.0

    def _await_data(self) -> None:
        """No data is no verdict; but a candidate does not run unseen for long."""
        trial = self._trial()
        begun = trial.period.counting or trial.period.since
        if self._age(begun) > 2 * trial.seconds + trials.NO_DATA_SECONDS:
            self._end(trials.Outcome("Inconclusive", self.evidence.problem or "no requests to compare"))
        elif not trials.due(trial, self.now):
            self.look_in = min(self.look_in, max(1.0, trial.seconds - self._age(begun)))

    def _count(self) -> None:
        trial = self._trial()
        second = trial.period.index % 2 == 1
        trial = trials.counted(trial, self.evidence, self.evidence.of(trial.knob.stage), self.now)
        self._set(trial=trial)
        self.look_in = 1.0
        outcome = trials.verdict(trial) if second else None
        if outcome is None:
            return
        if outcome.verdict == "Inconclusive" and trials.extended(trial):
            self._set(trial=msgspec.structs.replace(trial, extended=True))
            self._tell("TrialExtended", f"trial {trial.id}: {outcome.reason}")
        else:
            self._end(outcome)

    def _waste(self, why: str) -> None:
        trial = self._trial()
        if trial.wasted >= trials.MOST_WASTED or not self.evidence.of(trial.knob.stage):
            self._end(trials.Outcome("Inconclusive", f"too many periods could not be used: {why}"))
        elif self.evidence.moving and self._age(trial.since) > 600:
            self._end(trials.Outcome("Superseded", self.evidence.moving))
        elif not self.evidence.moving:
            self._set(trial=trials.wasted(trial, self.evidence.of(trial.knob.stage), self.now))
            self.look_in = 1.0

    def _end(self, outcome: trials.Outcome) -> None:
        """The verdict: what is compared is over, and what follows is in force from the next look on."""
        trial = self._trial()
        self._record(trial, outcome.verdict, outcome.reason)
        self._set(trial=None, changed=self.now)
        self.look_in = 1.0
        if outcome.verdict == "Promoted":
            self._promote(trial)
            return
        if outcome.verdict in ("RolledBack", "Inconclusive"):
            self._quarantine(trial.candidate, outcome.reason)
        self._cool_down(failed=outcome.verdict == "RolledBack")
        self._phase("Watching", f"trial {trial.id} is over: {outcome.verdict}")

    # --- promotion and soak

    def _promote(self, trial: Trial) -> None:
        names = sorted(worker.name for worker in self.evidence.of(trial.knob.stage))
        if trial.design == "Switchback" or len(names) <= 1:
            self._choose(trial.id, trial.candidate)
            return
        first = tuple(names[:1])
        self._set(promotion=Promotion(id=trial.id, setting=trial.candidate, replicas=first, since=self.now))
        self._phase("Promoting", f"trial {trial.id}: replica by replica")

    def promote_on(self) -> None:
        """Twice as many replicas each interval, while none of them fails."""
        promotion = self.state.promotion
        assert promotion is not None
        base = _current(self.policy, self.state)
        workers = self.evidence.of(_stage(base, promotion.setting))
        names = sorted(worker.name for worker in workers)
        failing = [w.name for w in workers if w.name in promotion.replicas and (w.errors or 0) >= 3]
        self.look_in = min(self.policy.interval, TRIAL_LOOK)
        if failing:
            self._regress(promotion.id, promotion.setting, base, f"{failing[0]} ends requests with errors")
        elif self.evidence.moving or self._age(promotion.since) < self.policy.interval:
            return
        elif 2 * len(promotion.replicas) >= min(len(names), 64):
            self._choose(promotion.id, promotion.setting)
        else:
            self._set(
                promotion=Promotion(
                    id=promotion.id,
                    setting=promotion.setting,
                    replicas=tuple(names[: 2 * len(promotion.replicas)]),
                    since=self.now,
                )
            )

    def _choose(self, number: int, setting: Setting) -> None:
        record = next((each for each in reversed(self.state.history) if each.id == number), None)
        before = _current(self.policy, self.state)
        soak = timedelta(seconds=min(max(10 * self.policy.interval, 60.0), 600.0))
        workers = self.evidence.of(_stage(before, setting))
        self._set(
            chosen=setting,
            last_good=before,
            promotion=None,
            changed=self.now,
            soak=Soak(
                id=number,
                since=self.now + timedelta(seconds=trials.wash_out(self.policy)),
                until=self.now + soak,
                expected=0.0 if record is None or record.baseline is None else record.baseline,
                restarts=sum(worker.restarts for worker in workers),
            ),
        )
        self._quarantine(before, f"trial {number} found something better")
        self._phase("Soaking", f"trial {number} is promoted everywhere and watched")

    def soak_on(self) -> None:
        """Watches a promoted setting; what serves worse than before is taken back."""
        soak, chosen, before = self.state.soak, self.state.chosen, self.state.last_good
        assert soak is not None and chosen is not None and before is not None
        self.look_in = min(self.policy.interval, TRIAL_LOOK)
        workers = self.evidence.of(_stage(before, chosen))
        if not self.evidence.moving and sum(worker.restarts for worker in workers) >= soak.restarts + 2:
            self._regress(soak.id, chosen, before, "replicas are started anew again and again")
            return
        if self.evidence.problem:
            if self.now >= soak.until + timedelta(seconds=600):
                self._settle_down()
            return
        everything = together(with_turned(totals(self.evidence.served), self.evidence).values())
        good = share(everything)
        if everything.requests >= 2 * LEAST_REQUESTS and good < soak.expected - REGRESSION - _noise(
            everything.requests
        ):
            same = context(self.evidence, self.state.context) == self.state.context
            if same:
                self._regress(soak.id, chosen, before, f"{good:.0%} served well, {soak.expected:.0%} before")
                return
        if self.now >= soak.until:
            self._settle_down(good if everything.requests >= LEAST_REQUESTS else None)

    def _settle_down(self, good: float | None = None) -> None:
        """A promoted setting has proved itself."""
        chosen, soak = self.state.chosen, self.state.soak
        assert chosen is not None and soak is not None
        self._set(soak=None, last_good=chosen, breaches=0, breached=None)
        if good is not None and self.state.context is not None:
            known = Known(context=self.state.context, setting=chosen, good=good, at=self.now)
            others = [each for each in self.state.knowledge if each.context != known.context]
            self._set(knowledge=(*others, known)[-MAX_KNOWLEDGE:])
        self._phase("Watching", f"trial {soak.id} has proved itself")
        self._tell("Settled", f"trial {soak.id}: {_words(chosen)} has proved itself")

    def _regress(self, number: int, setting: Setting, before: Setting, why: str) -> None:
        """Back to what was good before, at once."""
        record = next((each for each in reversed(self.state.history) if each.id == number), None)
        knob = record.knob if record else (before.differs_from(setting) or (Knob.RAMP,))[0]
        self._add_record(
            Record(
                id=number,
                at=self.now,
                since=record.since if record else self.now,
                context=self.state.context,
                knob=knob,
                before=_value(setting, knob),
                after=_value(before, knob),
                verdict="Regressed",
                reason=why[:256],
            )
        )
        self._set(chosen=before, last_good=before, promotion=None, soak=None, changed=self.now)
        self._quarantine(setting, why)
        self._cool_down(failed=True)
        self._phase("Watching", f"back to the last good setting: {why}")
        self._tell("Regressed", f"trial {number}: back to {_words(before)}: {why}", kind="Warning")

    # --- bookkeeping

    def _trial(self) -> Trial:
        assert self.state.trial is not None
        return self.state.trial

    def _within_bounds(self, setting: Setting) -> bool:
        differing = self.policy.initial.differs_from(setting)
        inside = all(setting.value(knob) in ladder(self.policy, knob) for knob in differing if knob is not Knob.PAIRS)
        return inside and (Knob.PAIRS not in differing or len(setting.capture_pairs) <= self.policy.budget.count)

    def _follow_identity(self) -> None:
        """What was learned with another model, image or device holds no more."""
        known, seen = self.state.identity, self.evidence.identity
        if known == seen or not seen.device:
            return
        if known is not None and known.device:
            self._supersede("the model, the image or the device is another one")
            self._set(knowledge=(), quarantine=(), soak=None, changed=self.now, breaches=0, context=None)
            self._tell("Forgotten", "the model, the image or the device is another one: what was learned is forgotten")
        self._set(identity=seen)

    def _rest(self, phase: Phase, message: str) -> None:
        """Nothing but what the resource asks for is in force."""
        self._supersede(message)
        if self.state.chosen is not None or self.state.soak is not None:
            self._set(chosen=None, last_good=None, soak=None, changed=self.now)
        self._set(recommendation=None if phase == "Off" else self.state.recommendation, breaches=0, breached=None)
        self._phase(phase, message)

    def _supersede(self, why: str) -> None:
        """Ends what is under way, without a verdict."""
        if self.state.trial is not None:
            self._record(self.state.trial, "Superseded", why)
            self._set(trial=None, changed=self.now)
        if self.state.promotion is not None or self.state.soak is not None:
            self._set(promotion=None, soak=None, changed=self.now)

    def _record(self, trial: Trial, verdict: Verdict, reason: str) -> None:
        whole = trial.cells[0] if trial.cells else None
        compared = whole is not None and whole.test.pairs > 0
        lower, upper = interval(whole.test) if whole is not None and compared else (None, None)
        record = Record(
            id=trial.id,
            at=self.now,
            since=trial.since,
            context=self.state.context,
            knob=trial.knob,
            before=_value(trial.baseline, trial.knob),
            after=_value(trial.candidate, trial.knob),
            verdict=verdict,
            reason=reason[:256],
            requests=whole.candidate.requests + whole.baseline.requests if whole else 0,
            baseline=share(whole.baseline) if whole and compared else None,
            difference=whole.test.mean if whole and compared else None,
            lower=lower,
            upper=upper,
        )
        self._add_record(record)
        words = f"trial {trial.id}, {trial.knob}: {record.after} instead of {record.before}: {reason}"
        self._tell(verdict, words, kind="Warning" if verdict == "RolledBack" else "Normal", trial=trial)

    def _add_record(self, record: Record) -> None:
        self._set(history=(*self.state.history, record)[-MAX_HISTORY:])

    def _quarantine(self, setting: Setting, why: str) -> None:
        """Not again under this workload, for a time that doubles each time."""
        if self.state.context is None:
            return
        here = self.state.context
        before = next((q for q in self.state.quarantine if q.setting == setting and q.context == here), None)
        failures = before.failures + 1 if before else 1
        base = timedelta(seconds=max(1800.0, 60 * self.policy.interval))
        until = self.now + min(base * 2 ** min(failures - 1, 10), LONGEST_QUARANTINE)
        added = Quarantined(setting=setting, context=here, reason=why[:256], failures=failures, until=until)
        others = [q for q in self.state.quarantine if q is not before]
        self._set(quarantine=(*others, added)[-MAX_QUARANTINE:])

    def _cool_down(self, *, failed: bool) -> None:
        """Some time between two trials, doubled after each failure in a row."""
        base = timedelta(seconds=max(10.0, self.policy.interval))
        failures = 0
        for record in reversed(self.state.history):
            if record.verdict not in ("RolledBack", "Regressed"):
                break
            failures += 1
        wait = min(base * 2 ** min(failures, 10), LONGEST_COOL_DOWN) if failed else base
        self._set(next_trial=self.now + wait, breaches=max(0, self.state.breaches - 1), breached=self.now)

    def _tell(
        self, reason: str, message: str, *, kind: Literal["Normal", "Warning"] = "Normal", trial: Trial | None = None
    ) -> None:
        data: dict[str, Any] = {"context": self.state.context}
        if trial is not None:
            data["trial"] = trial
        self.events.append(Event(kind=kind, reason=reason, message=message, data=data))

    def _phase(self, phase: Phase, message: str) -> None:
        self._set(phase=phase, message=message[:256])

    def _set(self, **fields: Any) -> None:
        self.state = msgspec.structs.replace(self.state, **fields)

    def _age(self, moment: datetime) -> float:
        return (self.now - moment).total_seconds()


def _noise(requests: int) -> float:
    return 1.0 / math.sqrt(requests)


def _value(setting: Setting, knob: Knob) -> str:
    value = setting.value(knob)
    if knob is Knob.PAIRS:
        return ("[" + ", ".join(f"{shape.rows}x{shape.frames}" for shape in value) + "]")[:256]
    return str(list(value) if isinstance(value, tuple) else value)


def _words(setting: Setting) -> str:
    return ", ".join(
        f"{knob} {_value(setting, knob)}" for knob in Knob if setting.value(knob) or knob is not Knob.PAIRS
    )


def _without_numbers(why: str) -> str:
    """The objective that is missed, without the share that changes from look to look."""
    return f"the objective of {why.split(':')[0]} is missed" if ":" in why else "playback waits too often"


__all__ = ["Assignment", "Context", "Decision", "Event", "assignment", "decide", "since"]
