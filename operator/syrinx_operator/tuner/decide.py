"""The tuner's decision function: (policy, state, evidence, now) -> (new state, events, requeue delay). Pure.

A trial is a switchback or parallel experiment with one knob changed. Its paired differences feed a test by betting
(`stats`), which is anytime-valid, so the tuner evaluates it after each pair. `decide` first applies edits of
the resource, then advances whatever is in progress: a trial, a promotion or a soak. With nothing in progress, it checks
the objectives and starts the next trial.
"""

from datetime import datetime, timedelta

from msgspec import Struct

from syrinx_operator.resource.knobs import Knob, Setting
from syrinx_operator.resource.stage_config import Stage
from syrinx_operator.resource.tuning_status import Phase, Recommendation, State
from syrinx_operator.tuner.builder import DecisionBuilder, Event, format_change, in_force, stage_of
from syrinx_operator.tuner.evidence import MIN_REQUESTS, Evidence, classify_workload, missed_objective, similar
from syrinx_operator.tuner.policy import Policy
from syrinx_operator.tuner.promotion import advance_promotion, advance_soak
from syrinx_operator.tuner.search import Proposal, propose, within_bounds
from syrinx_operator.tuner.trial import advance_trial, start_trial

__all__ = ["Assignment", "Decision", "Event", "assignment", "decide", "window_start"]

OVERRIDE_TTL_SECONDS = 60.0
"""Lifetime of a settings override that is not renewed. Covers at least three evaluations."""
BREACHES = 3
"""Consecutive evaluations that must find an objective missed before a trial starts."""
TRIALS_A_DAY = 12
"""Limit per workload."""
MIN_RATE = 0.05
"""Requests per second. Below this rate a trial would take hours."""

_NEW_IDENTITY = "the model, image, device or engine changed"


class Decision(Struct, frozen=True, kw_only=True):
    """The state to store, from which `assignment` derives the settings, and the events to emit."""

    state: State
    events: tuple[Event, ...] = ()
    requeue_after: float
    """Seconds until the next evaluation."""


class Assignment(Struct, frozen=True, kw_only=True):
    """The setting that each replica must run."""

    base: Setting
    """Setting of all replicas without an override. The ConfigMap holds it for replicas that start."""
    stage: Stage | None = None
    """Stage whose replicas have overrides. An override expires on its own unless each evaluation renews it."""
    candidate: Setting | None = None
    """The setting of these overrides."""
    replicas: tuple[str, ...] | None = None
    """Names of the replicas with overrides; None for all of the stage."""

    @property
    def has_overrides(self) -> bool:
        """Whether any replica has an override."""
        return self.candidate is not None and self.replicas != ()

    def override(self, stage: Stage, replica: str) -> Setting | None:
        """Returns the override of a replica, or None."""
        return self.candidate if stage is self.stage and (self.replicas is None or replica in self.replicas) else None


def decide(policy: Policy, state: State, evidence: Evidence, now: datetime) -> Decision:
    """Returns the next decision. Without data it changes no setting, and it never has two changes in progress.

    `evidence` covers the window from `window_start(policy, state, now)`, or the part of it that is known.
    """
    builder = DecisionBuilder(policy, state, evidence, now)
    if _apply_spec(builder):
        if builder.state.trial is not None:
            advance_trial(builder)
        elif builder.state.promotion is not None:
            advance_promotion(builder)
        elif builder.state.soak is not None:
            advance_soak(builder)
        else:
            _monitor(builder)
    return Decision(state=builder.state, events=tuple(builder.events), requeue_after=builder.requeue_after)


def assignment(policy: Policy, state: State) -> Assignment:
    """Returns the settings that a state implies. In modes other than Auto these are the requested ones."""
    base, trial, promotion = in_force(policy, state), state.trial, state.promotion
    if policy.mode != "Auto" or policy.paused:
        return Assignment(base=base)
    if trial is not None:
        replicas = None if trial.period.all_replicas else trial.period.candidate_replicas
        return Assignment(base=base, stage=trial.knob.stage, candidate=trial.candidate, replicas=replicas)
    if promotion is not None:
        stage, candidate = stage_of(base, promotion.setting), promotion.setting
        return Assignment(base=base, stage=stage, candidate=candidate, replicas=promotion.replicas)
    return Assignment(base=base)


def window_start(policy: Policy, state: State, now: datetime) -> datetime:
    """Returns the start of the evidence window for the next decision."""
    if state.trial is not None:
        return state.trial.period.counting_since or now
    if state.promotion is not None:
        return state.promotion.last_step_time
    if state.soak is not None:
        return state.soak.start_time
    window = now - timedelta(seconds=min(max(10 * policy.interval, 60.0), 300.0))
    return max(window, state.last_change_time) if state.last_change_time is not None else window


# Edits of the resource --------------------------------------------------------------------------------------------


def _apply_spec(builder: DecisionBuilder) -> bool:
    """Applies edits of the resource and changes of the image or GPU. Returns whether tuning may continue."""
    policy, state = builder.policy, builder.state
    if state.requested is not None and state.requested != policy.requested:
        _reset(builder, "the resource was edited; its values are in force")
    elif state.chosen is not None and not within_bounds(policy, state.chosen):
        _reset(builder, "the bounds were edited; the values of the resource are in force")
    builder.set(requested=policy.requested, mode=policy.mode)
    _apply_identity(builder)
    if policy.mode == "Off":
        _revert_to_requested(builder, "Off", "tuning is off")
        return False
    if policy.paused:
        builder.supersede("paused")
        builder.set_phase("Paused", "tuning is paused; settings stay as they are")
        return False
    if policy.mode == "Recommend":
        _revert_to_requested(builder, builder.state.phase, builder.state.message)
    return True


def _apply_identity(builder: DecisionBuilder) -> None:
    """Discards what was learned if the model, image, device or engine changed."""
    known, current = builder.state.identity, builder.evidence.identity
    if known == current or not current.device:
        return
    if known is not None and known.device:
        builder.supersede(_NEW_IDENTITY)
        builder.set(best_known=(), quarantine=(), soak=None, workload=None)
        builder.set(consecutive_breaches=0, last_change_time=builder.now)
        builder.emit("Forgotten", f"{_NEW_IDENTITY}; the best-known settings and the quarantine were cleared")
    builder.set(identity=current)


def _reset(builder: DecisionBuilder, why: str) -> None:
    """Returns to the requested setting and clears the quarantine, because the user edited the resource."""
    if builder.state.chosen is not None and builder.state.trial is None:
        builder.emit("Superseded", why)
    builder.supersede(why)
    builder.set(chosen=None, last_good=None, quarantine=(), consecutive_breaches=0, recommendation=None)
    builder.set(last_change_time=builder.now)


def _revert_to_requested(builder: DecisionBuilder, phase: Phase, message: str) -> None:
    """Returns to the requested setting because the mode is not Auto."""
    why = f"tuning.mode is {builder.policy.mode}; the values of the resource are in force"
    builder.supersede(why)
    if builder.state.chosen is not None:
        builder.emit("Superseded", why)
        builder.set(chosen=None, last_good=None, last_change_time=builder.now)
    if phase == "Off":
        builder.set(recommendation=None, consecutive_breaches=0, last_breach_time=None)
    builder.set_phase(phase, message)


# Without a change in progress -------------------------------------------------------------------------------------


def _monitor(builder: DecisionBuilder) -> None:
    """Evaluates the objectives. Starts or recommends a trial after `BREACHES` consecutive misses."""
    policy, evidence = builder.policy, builder.evidence
    if evidence.problem:
        builder.set_phase("NoData", evidence.problem)
        return
    workload = classify_workload(evidence, builder.state.workload)
    if workload != builder.state.workload:
        builder.set(workload=workload, consecutive_breaches=0)
    breach = missed_objective(policy, evidence)
    _count_breach(builder, bool(breach))
    if not breach and not any(stats.requests for stats in evidence.routes.values()):
        builder.set_phase("NoData", "no streaming request in the evaluation window")
        return
    sustained = builder.state.consecutive_breaches >= BREACHES
    current = in_force(policy, builder.state)
    proposal = propose(policy, builder.state, evidence, current, builder.now, missed=sustained)
    if proposal is not None and (sustained or not breach):
        _try(builder, current, proposal, breach)
        return
    builder.set(recommendation=None)
    if sustained:
        # Without the measured ratio, which changes with each evaluation.
        missed = f"the objective of {breach.split(':')[0]} is missed" if ":" in breach else "too many streams underrun"
        builder.set_phase("Watching", f"{missed}, but every setting was tried under this workload")
    elif breach:
        builder.set_phase("Watching", "an objective seems to be missed")
    elif policy.objectives:
        builder.set_phase("Watching", "the objectives are met")
    else:
        builder.set_phase("Watching", "no objective (spec.slo.ttfa); only underruns are evaluated")


def _count_breach(builder: DecisionBuilder, breach: bool) -> None:
    """Counts a breach at most once per interval, because evaluations may come more often."""
    count, last = builder.state.consecutive_breaches, builder.state.last_breach_time
    if not breach and count:
        builder.set(consecutive_breaches=0, last_breach_time=None)
    elif breach and count < BREACHES and (last is None or builder.seconds_since(last) >= 0.9 * builder.policy.interval):
        builder.set(consecutive_breaches=count + 1, last_breach_time=builder.now)


def _try(builder: DecisionBuilder, current: Setting, proposal: Proposal, breach: str) -> None:
    """Starts a trial of a proposal, or recommends it."""
    knob, known = proposal.knob, builder.state.recommendation
    change = format_change(knob, current, proposal.setting)
    why = f"{breach or 'less engine time'}; {proposal.rationale}"
    is_new = known is None or (known.knob, known.setting) != (knob, proposal.setting)
    if is_new:
        rationale = proposal.rationale[:256]
        builder.set(recommendation=Recommendation(knob=knob, setting=proposal.setting, rationale=rationale))
    if builder.policy.mode == "Recommend":
        if is_new:
            builder.emit("Recommended", f"try {change}: {why}")
        builder.set_phase("Watching", f"try {change}")
    elif blocker := _blocker(builder, knob):
        builder.set_phase("Watching", f"a trial of {knob} waits: {blocker}")
    else:
        number = builder.state.trial_count + 1
        trial = start_trial(builder.policy, number, proposal, current, builder.evidence, builder.now)
        builder.set(trial_count=number, trial=trial, recommendation=None, last_change_time=builder.now)
        builder.set_phase("Trial", change)
        builder.emit("TrialStarted", f"trial {number}, {change} ({trial.design}): {why}")
        builder.requeue_after = 1.0


def _blocker(builder: DecisionBuilder, knob: Knob) -> str:
    """Returns why no trial can start now; empty if one can."""
    evidence, state, now = builder.evidence, builder.state, builder.now
    replicas = evidence.replicas_of(knob.stage)
    if evidence.disruption:
        return evidence.disruption
    if state.next_trial_time is not None and now < state.next_trial_time:
        return f"cooling down until {state.next_trial_time:%H:%M:%S}"
    alike = [record for record in state.history if similar(record.workload, state.workload)]
    if sum(builder.seconds_since(record.time) < 86_400 for record in alike) >= TRIALS_A_DAY:
        return f"the limit of {TRIALS_A_DAY} trials a day under this workload is reached"
    requests = evidence.total.requests
    if requests < MIN_REQUESTS or requests / max(evidence.seconds, 1.0) < MIN_RATE:
        return "too few requests"
    if not replicas or not all(replica.ready and replica.settings is not None for replica in replicas):
        return f"not every {knob.stage} is ready"
    return ""
