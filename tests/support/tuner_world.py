"""A pipeline with a given ratio of bad requests, and the tuner that decides for it."""

import math

import msgspec
from msgspec.structs import replace

from simulator.scripted import START, TASK_TYPE, Bad, Scripted, clock
from syrinx_operator.observed.evidence import Objective, Outcomes
from syrinx_operator.resource.knobs import Setting
from syrinx_operator.resource.resolve import resolve
from syrinx_operator.resource.spec import default_pipeline
from syrinx_operator.resource.state.tuning_status import CallPoint, Capacity, Measured, State, StepPoint
from syrinx_operator.tuner.decide import Assignment, Decision, assignment, decide
from syrinx_operator.tuner.model.plan import Answer, Forecast, Question
from syrinx_operator.tuner.model.whatif import Plant
from syrinx_operator.tuner.policy import Policy, policy_of
from syrinx_stages.scheduling.traits import CPU

__all__ = ["BASE", "BETTER", "START", "TASK_TYPE", "World", "auto", "better", "clock", "machine", "plant", "served"]

BASE = Setting(talker_max_num_seqs=2, codec_max_num_seqs=8, chunk_ramp=(2, 2, 3, 4, 5, 7, 9, 12))
BETTER = replace(BASE, talker_max_num_seqs=8, codec_max_num_seqs=4)


def auto(**fields) -> Policy:
    """Returns an Auto policy with an objective."""
    policy = policy_of(resolve(default_pipeline()))
    given = {"mode": "Auto", "requested": BASE, "objectives": {TASK_TYPE: Objective(0.2, 0.95)}, **fields}
    return replace(policy, **given)


def machine(step=0.012, row=0.001, call=0.006, frame=0.0004, prefill=0.02) -> Measured:
    """Returns the engine times of a linear machine."""
    return Measured(
        steps=tuple(StepPoint(rows, 100, 100 * (step + row * (rows + rows // 2 + 1) / 2)) for rows in (1, 2, 4, 8, 16)),
        calls=tuple(
            CallPoint(rows, frames, False, 100, 100 * (call + frame * rows * frames))
            for rows in (1, 4, 16)
            for frames in (2, 8, 12)
        ),
        prefills=100,
        prefill_seconds=100 * prefill,
    )


def plant(resident: int = 32, **fields) -> Plant:
    """Returns a talker and a codec."""
    given = {
        **{"talkers": 1, "codecs": 1, "patience": 2.0, "limits": {"CustomVoice": 0.3, "Base": 0.3}},
        **{"lead_limit": 8.0, "traits": CPU},
        **fields,
    }
    return Plant(**{"talker_resident": resident, "codec_resident": resident, **given})


def better(base: float, other: float, setting: Setting = BETTER) -> Bad:
    """Returns the ratio of bad requests: one of a setting, and one of all others."""
    return lambda running, _: other if running == setting else base


def served(bad: int, requests: int, label: str = "") -> dict[tuple[str, str], Outcomes]:
    """Returns outcomes of one arm."""
    return {(TASK_TYPE, label): Outcomes(accepted=requests, well=requests - bad, late=bad)}


class World(Scripted):
    """The tuner and its pipeline. The model always says that `proposal` is best: it serves `gain` more of the requests
    well, and of another load `more`. It errs by `doubt`."""

    def __init__(
        self,
        bad: Bad,
        *,
        policy: Policy | None = None,
        proposal: Setting | None = BETTER,
        gain: float = 0.04,
        more: float = 0.0,
        start: float = 0.0,
        doubt: float = 0.03,
        **fields,
    ) -> None:
        self.policy = policy or auto()
        super().__init__(bad, self.policy.requested, **fields)
        self.proposal, self.gain, self.more, self.doubt = proposal, gain, more, doubt
        self.questions: list[Question] = []
        self.state = State()
        self.decisions: list[Decision] = []
        self.applied: list[Assignment] = []
        self.run(start)

    def ask(self, question: Question) -> Answer | None:
        self.questions.append(question)
        if self.proposal is None:
            return None
        now = Forecast(question.current, question.observed_well, 0.5, question.observed_well)
        best = Forecast(self.proposal, max(0.0, min(1.0, now.well + self.gain)), 0.5, now.score + self.gain + self.more)
        return Answer(now, best, self.doubt)

    def ask_capacity(self, question: Question, target: float) -> Capacity | None:
        raise AssertionError("nothing is scaled")

    def evaluate(self) -> Decision:
        """Decides once, as if the process had restarted since the last decision, and applies the assignment."""
        self.state = msgspec.json.decode(msgspec.json.encode(self.state), type=State)
        decision = decide(self.policy, self.state, self.evidence, self.ask, self.ask_capacity, clock(self.now))
        self.state = decision.state
        self.decisions.append(decision)
        self.applied.append(assignment(self.policy, self.state))
        self.apply(self.applied[-1])
        return decision

    def serve(self, seconds, each=lambda world: None) -> "World":
        """Decides whenever a decision is due. `each` is called after every one."""
        return self.until(lambda _: False, seconds, each, must=False)

    def until(self, condition, seconds=3600.0, each=lambda world: None, *, must=True) -> "World":
        """Decides until a condition holds."""
        end = self.now + seconds
        while not condition(self):
            if self.now >= end:
                assert not must, f"{self.state.phase}: {self.state.message}"
                break
            decision = self.evaluate()
            each(self)
            if condition(self):
                break
            self.run(self.now + math.ceil(10 * decision.requeue_after) / 10)
        return self

    @property
    def events(self) -> list[str]:
        return [event.reason for decision in self.decisions for event in decision.events if event.kind != "Audit"]

    @property
    def verdicts(self) -> list[str]:
        return [record.verdict for record in self.state.history]

    @property
    def is_plain(self) -> bool:
        """Whether nothing is overridden."""
        return self.applied[-1].candidate is None and self.applied[-1].label == ""
