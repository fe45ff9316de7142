"""The course of a canary, decision by decision."""

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from syrinx_operator.cluster.runners.canary import (
    MAX_RESTARTS,
    PERIOD_SECONDS,
    PROBLEM_SECONDS,
    CanaryInputs,
    Comparison,
    compare,
    decide,
)
from syrinx_operator.observed.evidence import Evidence, StreamStats
from syrinx_operator.resource.fields.rollout import CanarySpec, CanaryStep
from syrinx_operator.resource.knobs import Identity
from syrinx_operator.resource.state.canary_status import Counts

START = datetime(2026, 11, 24, 12, 0, tzinfo=UTC)
SPEC = CanarySpec(steps=(CanaryStep(weight=10, pause_seconds=30), CanaryStep(weight=50, pause_seconds=20)))
DEADLINE = timedelta(seconds=600)


def counts(requests: int, good: int | None = None, errors: int = 0, underruns: int = 0) -> Counts:
    good = requests - errors - underruns if good is None else good
    return Counts(requests=requests, good=good, errors=errors, underruns=underruns)


class Course:
    """A canary, evaluated every 10 seconds."""

    def __init__(self, spec: CanarySpec = SPEC, **first: object) -> None:
        self.now = START
        self.spec = spec
        self.status = None
        self.events: list[str] = []
        self.stable, self.canary = counts(90), counts(10)
        self.step(**first)

    def step(self, seconds: float = PERIOD_SECONDS, **inputs: object) -> "Course":
        """Evaluates it after some seconds, in which both versions had their requests."""
        self.now += timedelta(seconds=seconds)
        seen = Comparison(stable=self.stable, canary=self.canary, until=self.now)
        known = {"spec": self.spec, "target": "t1", "image": "syrinx:2", "deadline": DEADLINE, "comparison": seen}
        self.status, found = decide(self.status, CanaryInputs(**{**known, **inputs}), self.now)
        self.events += [event.reason for event in found]
        return self

    def steps(self, count: int, **inputs: object) -> "Course":
        for _ in range(count):
            self.step(**inputs)
        return self

    def until_over(self, limit: int = 100) -> int:
        """Returns the seconds until it is promoted or rolled back."""
        since = self.now
        for _ in range(limit):
            if self.status.phase in ("Promoted", "RolledBack"):
                return round((self.now - since).total_seconds())
            self.step()
        raise AssertionError(self.status)


def running(**spec: object) -> Course:
    """A canary whose first period is being counted."""
    course = Course(replace(SPEC, **spec)).step()
    assert (course.status.phase, course.status.weight) == ("Running", 10)
    assert course.status.period_time == course.now
    return course


def test_a_good_canary_goes_through_its_steps_and_is_promoted():
    course = Course(unready="its talker: 0 of 1 pods are ready")
    assert (course.status.phase, course.status.weight) == ("Starting", 0)
    course.step()
    assert (course.status.phase, course.status.weight) == ("Running", 10)
    course.step(is_routed=False)
    assert course.status.period_time is None and "gateways to forward" in course.status.message
    seconds = course.until_over()
    assert course.status.phase == "Promoted" and "canary: 50 requests, 100.0 % good" in course.status.message
    assert seconds == 10 + 30 + 10 + 10 + 20
    assert course.events == ["CanaryStarted", "CanaryStep", "CanaryStep", "CanaryPromoted"]


@pytest.mark.parametrize(
    ("canary", "seconds"),
    [
        pytest.param(counts(10, errors=10), 10, id="all requests fail"),
        pytest.param(counts(3, errors=3), 10, id="all of a few requests fail"),
        pytest.param(counts(10, errors=5), 10, id="half of the requests fail"),
        pytest.param(counts(10, underruns=10), 60, id="all streams underrun"),
        pytest.param(counts(10, underruns=5), 100, id="half of the streams underrun"),
    ],
)
def test_a_harmful_canary_is_rolled_back_within_two_minutes(canary, seconds):
    course = running(steps=(CanaryStep(weight=10, pause_seconds=3600),))
    course.canary = canary
    assert course.until_over() <= seconds
    assert (course.status.phase, course.status.reason, course.status.weight) == ("RolledBack", "Failed", 0)
    assert f"canary: {course.status.canary.requests} requests" in course.status.message
    assert course.events[-1] == "CanaryFailed"
    before = course.status
    assert course.steps(3).status == before, "it is not tried again"


def test_a_skewed_harm_is_found_by_its_mean():
    """Usually a little better, at times much worse."""
    course = running(steps=(CanaryStep(weight=10, pause_seconds=7200),))
    course.stable = counts(100, underruns=5)
    for _ in range(100):
        course.canary = counts(10)
        course.steps(4)
        course.canary = counts(10, underruns=8)
        course.step()
    assert course.status.reason == "Failed"


def test_no_traffic_is_no_evidence():
    course = running()
    course.canary = counts(0)
    course.steps(60)
    assert (course.status.phase, course.status.step) == ("Running", 0) and "waits for requests" in course.status.message
    course.canary = counts(10)
    course.step()
    assert course.status.step == 0 and course.status.step_requests == 10, "fewer than minRequests"
    course.step()
    assert course.status.step == 1


def test_few_requests_make_longer_periods():
    course = running()
    course.canary = counts(4)
    course.steps(3)
    assert course.status.worse.count == 0
    course.canary = counts(5)
    course.step()
    assert course.status.worse.count == 1 and course.status.step_seconds == 40


@pytest.mark.parametrize(
    ("inputs", "seconds", "message"),
    [
        ({"problem": "x: ImagePullBackOff", "unready": "0 of 1"}, PROBLEM_SECONDS + 10, "ImagePullBackOff"),
        ({"restarts": MAX_RESTARTS + 1, "last_exit": "x: exit code 1"}, 0, "restarted 3 times: x: exit code 1"),
        ({"unready": "its codec: 0 of 1 pods are ready"}, 620, "not ready after 10 minutes: its codec: 0 of 1"),
    ],
    ids=["image", "crashes", "never ready"],
)
def test_pods_that_do_not_run_roll_back(inputs, seconds, message):
    course = Course(unready="its pods start")
    limit = course.now + timedelta(seconds=seconds + 10)
    while course.status.phase == "Starting" and course.now < limit:
        course.step(**inputs)
    assert (course.status.phase, course.status.reason) == ("RolledBack", "Failed") and message in course.status.message


def test_a_problem_that_passes_is_forgotten():
    course = Course(unready="its pods start", problem="x: ImagePullBackOff")
    course.step(unready="its pods start").step(problem="x: ImagePullBackOff", unready="its pods start")
    course.step()
    assert course.status.phase == "Running"


def test_gateways_that_do_not_forward_roll_back():
    course = Course().step()
    while course.status.phase == "Running":
        course.step(60, is_routed=False)
    assert "too old for a canary" in course.status.message


def test_a_canary_that_cannot_serve_gets_no_requests_until_it_can():
    course = running()
    course.step(unready="its codec: 0 of 1 pods are ready", can_serve=False)
    assert (course.status.phase, course.status.weight) == ("Running", 0)
    course.step()
    assert course.status.weight == 10


def test_more_pods_start_before_the_next_step():
    course = running().steps(3)
    assert (course.status.step, course.status.weight) == (1, 10)
    course.step(unready="its talker: 1 of 2 pods are ready")
    assert course.status.weight == 10
    course.step()
    assert course.status.weight == 50


def test_one_experiment_at_a_time():
    course = Course().step(waits_for="the end of the tuner's trial 3")
    assert course.status.weight == 10, "it had begun"
    course = Course(waits_for="the end of the tuner's trial 3")
    assert (course.status.phase, course.status.weight) == ("Starting", 0) and "trial 3" in course.status.message


def test_without_a_serving_version_there_is_nothing_to_compare_with():
    course = Course(is_serving=False)
    assert course.status.phase == "Promoted" and "without a test" in course.status.message
    course = running().step(is_serving=False)
    assert course.status.phase == "Running", "a failure of the running version during a canary promotes nothing"


def test_an_edit_replaces_the_canary():
    course = running().step(target="t2", image="syrinx:3")
    assert (course.status.target, course.status.image) == ("t2", "syrinx:3")
    assert (course.status.phase, course.status.canary) == ("Running", Counts()), "it starts over"
    assert course.events[-2:] == ["CanaryStarted", "CanaryStep"]


def promoted(**inputs: object) -> Course:
    """A canary that was promoted, and whose pods serve while another version waits."""
    course = running().step(command="promote")
    return course.step(target="t2", image="syrinx:3", is_promoting=True, **inputs)


def test_an_edit_during_a_promotion_waits_for_its_end():
    course = promoted()
    assert (course.status.target, course.status.phase, course.status.weight) == ("t1", "Promoted", 10)
    course.step(target="t2", image="syrinx:3")
    assert (course.status.target, course.status.phase) == ("t2", "Running")
    assert course.events[-3:] == ["CanaryPromoted", "CanaryStarted", "CanaryStep"]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [({"blocked": "demo-talker-1: CrashLoopBackOff"}, "CrashLoopBackOff"), ({"command": "promote"}, "by the user")],
)
def test_an_edit_during_a_promotion_that_cannot_end_is_promoted_with_its_share(inputs, message):
    course = promoted(**inputs)
    assert (course.status.target, course.status.phase, course.status.weight) == ("t2", "Promoted", 10)
    assert message in course.status.message


def test_a_paused_canary_keeps_its_step_and_is_still_rolled_back():
    course = running().step(command="pause").steps(20)
    assert (course.status.step, course.status.paused) == (0, True) and "paused by the user" in course.status.message
    course.step(command="resume")
    assert (course.status.step, course.status.paused) == (1, False)
    course.step(command="pause")
    course.canary = counts(10, errors=10)
    course.until_over()
    assert course.status.reason == "Failed"


@pytest.mark.parametrize(
    ("command", "phase", "reason", "event"),
    [
        ("promote", "Promoted", None, "CanaryPromoted"),
        ("abort", "RolledBack", "Aborted", "CanaryAborted"),
    ],
)
def test_a_command_ends_it(command, phase, reason, event):
    course = running().step(command=command)
    assert (course.status.phase, course.status.reason, course.events[-1]) == (phase, reason, event)
    assert course.step(command=command).events.count(event) == 1, "it may be given twice"


def test_a_failed_canary_is_retried_or_promoted_on_command():
    course = running().step(command="abort").step(command="retry")
    assert (course.status.phase, course.status.reason, course.status.canary) == ("Running", None, Counts())
    course = running().step(command="abort").step(command="promote")
    assert course.status.phase == "Promoted"


def test_shorter_steps_promote():
    course = running()
    while course.status.step == 0:
        course.step()
    course.spec = replace(SPEC, steps=SPEC.steps[:1])
    assert course.step().status.phase == "Promoted"


# Counts -------------------------------------------------------------------------------------------------------


def evidence(completed: int = 0, within: int | None = None, underruns: int = 0, **fields: object) -> Evidence:
    within = completed if within is None else within
    streams = {"CustomVoice": StreamStats(requests=completed, within_objective=within, underruns=underruns)}
    identity = Identity(model="", image="", device="")
    known = {"since": START, "until": START + timedelta(seconds=10), "identity": identity, "streams": streams}
    return Evidence(**{**known, "completed": completed, **fields})


def test_late_underrun_refused_and_failed_requests_are_not_good():
    failed = {"CustomVoice": 5, "unknown": 50}
    seen = compare(evidence(100), evidence(20, within=16, underruns=1, failed=failed))
    assert seen.stable == counts(100)
    assert seen.canary == counts(25, good=15, errors=5, underruns=1)


def test_requests_that_are_not_streamed_count():
    assert compare(evidence(7, streams={}), evidence(3, streams={})).canary == counts(3)


def test_what_could_not_be_forwarded_is_an_error_of_the_canary():
    assert compare(evidence(90, lost_forwards=4), evidence(2)).canary == counts(6, errors=4)


def test_a_period_ends_where_both_counters_end():
    late = evidence(1, until=START + timedelta(seconds=4))
    assert compare(evidence(1), late).until == START + timedelta(seconds=4)


def test_a_canary_of_a_version_that_cannot_roll_out_is_promoted_without_a_test():
    course = Course(unready="its pods start", blocked="demo-talker-0: image syrinx:1 cannot be pulled")
    course.step(unready="its pods start", blocked="demo-talker-0: image syrinx:1 cannot be pulled")
    assert course.status.phase == "Promoted" and "without a test" in course.status.message
    assert "syrinx:1 cannot be pulled" in course.status.message


def test_a_pod_of_the_running_version_that_breaks_during_a_test_does_not_promote_the_canary():
    course = Course().steps(3)
    assert course.status.weight
    assert course.step(blocked="demo-talker-0: it is restarting").status.phase == "Running"
