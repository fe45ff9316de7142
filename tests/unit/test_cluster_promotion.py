"""A promoted canary: how long its pods serve, and which share of the requests."""

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from support.cluster_plan import CONFIG, EMPTY, after, canary_status, objects, owner_of, pipeline
from syrinx_operator.cluster.objects.state import ObjectKey, Replica
from syrinx_operator.cluster.plan import plan
from syrinx_operator.cluster.runners.promotion import serves_on, share_by_replicas
from syrinx_operator.resource.resolve import resolve
from syrinx_stages.contract.settings import ReportedSettings
from syrinx_stages.contract.stages import WORKERS, Stage

NOW = datetime(2026, 11, 24, 12, 0, tzinfo=UTC)
PROMOTED = NOW - timedelta(minutes=2)
OLD = {"rollout": {"canary": {}}, "talker": {"replicas": 2}}
NEW = {**OLD, "image": "syrinx/stages:2.0.0"}
KEY = ObjectKey("StatefulSet", "demo-talker")


class Promotion:
    """A canary that was promoted, and all pods of the new version."""

    def __init__(self) -> None:
        self.pipeline = resolve(pipeline(NEW))
        self.owner = owner_of(self.pipeline.resource)
        old = resolve(pipeline(OLD))
        cluster = after(plan(old, self.owner, EMPTY, CONFIG))
        tested = plan(self.pipeline, self.owner, cluster, CONFIG)
        status = canary_status(tested, "Promoted", weight=50)
        self.plan = plan(self.pipeline, self.owner, after(tested, cluster), CONFIG, None, status)
        self.pods = [
            Replica(
                name=f"demo-{stage}-{number}",
                component=stage,
                template=self.plan.templates[stage],
                ready=True,
                changed="2026-11-24T11:55:00Z",
                reported=ReportedSettings(self.plan.settings[stage].generation, {}, {}),
            )
            for stage, count in self.plan.replicas.items()
            if isinstance(stage, Stage)
            for number in range(count)
        ]

    def serves_on(
        self, talker: dict[str, object], *, existing: int = 2, spec: int = 2, promoted: datetime = PROMOTED
    ) -> bool:
        """Returns whether the canary's pods serve on with these fields of a talker."""
        pods = [replace(pod, **talker) if pod.name == "demo-talker-0" else pod for pod in self.pods]
        live = {key: {**each, "status": {"replicas": existing}} for key, each in objects(self.plan).items()}
        live[KEY]["spec"] = {**live[KEY]["spec"], "replicas": spec}
        observed = replace(EMPTY, objects=live, replicas=tuple(pods))
        return serves_on(self.pipeline, self.owner, self.plan, observed, promoted, NOW)


@pytest.mark.parametrize(
    ("talker", "expected"),
    [
        ({}, False),
        ({"template": "old"}, True),
        ({"ready": False}, True),
        ({"ready": False, "problem": "ImagePullBackOff: no such image"}, True),
        ({"ready": False, "problem": "Unschedulable: 0/1 nodes are available"}, False),
        ({"reported": None}, True),
    ],
    ids=["complete", "old", "starting", "broken", "without a node", "without its settings"],
)
def test_the_pods_serve_until_the_new_version_is_complete_or_needs_their_place(talker, expected):
    assert Promotion().serves_on(talker) is expected


def test_the_pods_give_their_place_to_those_that_a_quota_refuses():
    promotion = Promotion()
    assert promotion.serves_on({"template": "old"}, existing=2, spec=3) is False
    assert promotion.serves_on({"template": "old", "changed": "2026-11-24T11:59:30Z"}, existing=2, spec=3) is True


def test_a_pod_is_not_refused_because_it_does_not_exist_at_once():
    promoted = NOW - timedelta(seconds=1)
    assert Promotion().serves_on({"template": "old"}, existing=2, spec=3, promoted=promoted) is True


# The share ----------------------------------------------------------------------------------------------------


def share(talkers: tuple[int, int], codecs: tuple[int, int], generation: str = "new") -> float:
    """Returns the share of a gateway with so many ready replicas of its own, and of the canary's."""

    def pods(which: int) -> tuple[Replica, ...]:
        counts = zip(WORKERS, (talkers[which], codecs[which]), strict=True)
        fields = {"template": "", "ready": True, "model_generation": "new", "canary": which == 1}
        return tuple(
            Replica(name=f"{stage}-{n}", component=stage, **fields) for stage, count in counts for n in range(count)
        )

    gateway = Replica(name="gateway", component=Stage.GATEWAY, template="", model_generation=generation)
    return share_by_replicas(gateway, replace(EMPTY, replicas=pods(0), canary=pods(1)))


@pytest.mark.parametrize(
    ("talkers", "codecs", "expected"),
    [((1, 1), (1, 1), 0.5), ((3, 1), (3, 1), 0.25), ((2, 1), (1, 2), 0.67), ((0, 1), (1, 1), 1.0)],
    ids=["as many", "fewer", "more codecs", "no talker"],
)
def test_the_share_is_that_of_the_ready_replicas(talkers, codecs, expected):
    assert share(talkers, codecs) == expected


def test_replicas_of_another_generation_do_not_serve_a_gateway():
    assert share((3, 1), (3, 1), "old") == 1.0


def test_a_canary_without_a_codec_has_no_share():
    assert share((1, 1), (1, 0)) == 0.0
