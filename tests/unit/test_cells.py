"""Cells: whose replica is in which, their keys and addresses, and the rules of the resource."""

import itertools

import pytest
from msgspec import structs

from support.cluster_plan import EMPTY, after, objects, planned, replica
from syrinx_operator.cluster.objects.names import cell_in, redis_cell
from syrinx_operator.cluster.objects.state import ObjectKey
from syrinx_operator.cluster.plan import retained
from syrinx_operator.cluster.plan.canary import canary_template
from syrinx_operator.cluster.plan.records import RenderContext
from syrinx_operator.resource.checks.rules import violations
from syrinx_operator.resource.fields.autoscaling import StageAutoscalingSpec
from syrinx_operator.resource.fields.connector import ConnectorSpec
from syrinx_operator.resource.resolve import RedisForm, resolve
from syrinx_operator.resource.spec import CodecSpec, PipelineSpec, TalkerSpec, TTSPipeline, default_pipeline
from syrinx_operator.resource.stage_config import plan_local
from syrinx_stages.contract.keys import MAX_CELLS, SLOTS, Keys, cell_of, hash_slot
from syrinx_stages.contract.settings import StageConfig
from syrinx_stages.contract.stages import Stage
from syrinx_stages.runtime.errors import StartError
from syrinx_stages.runtime.start import connect_cells, connect_redis

TWO = {"talker": TalkerSpec(replicas=2), "codec": CodecSpec(replicas=2)}


def pipeline(**spec: object) -> TTSPipeline:
    return structs.replace(default_pipeline(), spec=PipelineSpec(**spec))


def test_a_slot_is_that_of_redis() -> None:
    # CLUSTER KEYSLOT of keys with these tags; the first is the example of the specification.
    assert [hash_slot(tag) for tag in ("123456789", "user1000", "")] == [12739, 3443, 0]


@pytest.mark.parametrize("cells", [2, 3, 7, MAX_CELLS])
def test_the_slots_of_cells_lie_in_equal_parts_of_all_slots(cells: int) -> None:
    prefixes = [Keys("demo", "g", cell, cells).prefix for cell in range(cells)]
    slots = [hash_slot(prefix.strip("{}")) for prefix in prefixes]
    assert [slot * cells // SLOTS for slot in slots] == list(range(cells))
    assert all(prefix.startswith("{demo:g:") for prefix in prefixes)


def test_no_key_is_of_two_cells_or_of_two_numbers_of_cells() -> None:
    prefixes = [Keys("demo", "g", cell, cells).prefix for cells in range(1, 9) for cell in range(cells)]
    assert len(set(prefixes)) == len(prefixes)
    assert prefixes[0] == "{demo:g:0}", "the keys of versions without cells"
    assert {Keys("demo", "g", cell, 2).voices for cell in range(2)} == {Keys("demo", "g").voices}


def test_a_cell_follows_from_the_number_of_a_replica() -> None:
    assert [cell_of(f"demo-talker-{number}", 3) for number in range(5)] == [0, 1, 2, 0, 1]
    assert cell_of("gateway", 1) == 0
    with pytest.raises(ValueError, match="'talker' must end with a number"):
        cell_of("talker", 2)
    with pytest.raises(ValueError, match="cell 2: there are 2"):
        Keys("p", "g", 2, 2)


@pytest.mark.parametrize(
    ("urls", "expected"), [("redis://a", ["a", "a", "a"]), ("redis://a redis://b redis://c", ["a", "b", "c"])]
)
async def test_the_addresses_of_cells(urls: str, expected: list[str]) -> None:
    config = StageConfig(pipeline="p", generation="g", replica="talker-4", model="bundled", cells=3)
    connectors = connect_cells(config, {"REDIS_URL": urls})
    own = connect_redis(config, {"REDIS_URL": urls})
    assert [connector._pool.address.name for connector in connectors] == [f"Redis at {host}:6379" for host in expected]
    assert [connector._keys.cell for connector in connectors] == [0, 1, 2]
    assert (own._pool.address.name, own._keys.cell) == (f"Redis at {expected[1]}:6379", 1)
    for connector in (*connectors, own):
        await connector.close()


@pytest.mark.parametrize(
    ("replica", "urls", "message"),
    [
        ("talker-1", "redis://a redis://b", "REDIS_URL holds 2 addresses for 3 cells"),
        ("talker", "redis://a", "replica: 'talker' must end with a number"),
    ],
)
def test_a_start_that_fails(replica: str, urls: str, message: str) -> None:
    config = StageConfig(pipeline="p", generation="g", replica=replica, model="bundled", cells=3)
    with pytest.raises(StartError, match=message):
        connect_redis(config, {"REDIS_URL": urls})


@pytest.mark.parametrize(
    ("spec", "paths"),
    [
        ({}, ["spec.talker.replicas", "spec.codec.replicas"]),
        (TWO, []),
        ({"talker": TalkerSpec(replicas=2), "topology": "Colocated"}, []),
        (
            TWO | {"codec": CodecSpec(replicas=2, autoscaling=StageAutoscalingSpec(by="Hpa", max_replicas=4))},
            ["spec.codec.autoscaling.minReplicas"],
        ),
        (TWO | {"connector": ConnectorSpec(cells=2, url="redis://r")}, ["spec.connector.url"]),
        (TWO | {"connector": ConnectorSpec(cells=2, url="redis://r-{cell}.example:6379/0")}, []),
        (TWO | {"connector": ConnectorSpec(cells=2, url="redis://r/{cell}")}, []),
        (TWO | {"connector": ConnectorSpec(cells=2, url="redis+sentinel://a,b/shard-{cell}")}, []),
        (TWO | {"connector": ConnectorSpec(cells=2, url="redis://r-{shard}")}, ["spec.connector.url"] * 2),
    ],
)
def test_rules(spec: dict[str, object], paths: list[str]) -> None:
    found = violations(pipeline(**({"connector": ConnectorSpec(managed=True, cells=2)} | spec)))
    assert [".".join(map(str, violation.path)) for violation in found] == paths


def test_local_processes_know_the_number_of_cells() -> None:
    processes = plan_local(resolve(pipeline(**TWO, connector=ConnectorSpec(managed=True, cells=2))), "1")
    assert {process.config.cells for process in processes} == {2}
    assert ConnectorSpec(cells=3, url="redis://r-{cell}/0").urls() == [f"redis://r-{cell}/0" for cell in range(3)]
    assert ConnectorSpec(cells=3, url="redis+sentinel://a/s").urls() == ["redis+sentinel://a/s"]


def test_the_label_of_a_cell() -> None:
    for form, cell in itertools.product((RedisForm.SINGLE, RedisForm.REPLICATED), (0, 1, 63)):
        assert cell_in(redis_cell(form, cell)) == (form, cell)
    for label in ("talker", "canary-codec", "redis-ha", "x-c1"):
        assert cell_in(label) == (label, 0)


@pytest.mark.parametrize("replicas", [1, 3])
def test_cells_differ_in_names_only_and_share_the_recorded_template(replicas: int) -> None:
    form = RedisForm.SINGLE if replicas == 1 else RedisForm.REPLICATED
    plan = planned(pipeline(**TWO, connector=ConnectorSpec(managed=True, cells=3, replicas=replicas)))
    found = objects(plan)
    names = [f"demo-{redis_cell(form, cell)}" for cell in range(3)]
    templates = [found[ObjectKey("StatefulSet", name)]["spec"]["template"] for name in names]
    assert {template["metadata"]["labels"]["syrinx.dev/template"] for template in templates} == {plan.templates[form]}
    assert len({template["spec"]["serviceAccountName"] for template in templates}) == 1
    text = str(templates[2]).replace(names[2], names[0]).replace(redis_cell(form, 2), form)
    assert text == str(templates[0])
    assert plan.replicas[form] == 3 * replicas


def test_the_redis_of_a_former_cell_stays_while_a_pod_from_before_exists() -> None:
    two = planned(pipeline(**TWO, connector=ConnectorSpec(managed=True, cells=2)))
    before = replica(Stage.TALKER, 0, "of before")
    one = planned(pipeline(**TWO), after(two, replicas=(before,)))
    assert one.generation != two.generation, "a change is a roll-out"
    assert ObjectKey("StatefulSet", "demo-redis-c1") in one.keep
    assert ObjectKey("StatefulSet", "demo-redis") not in one.keep
    assert not retained.keys(one.release, resolve(pipeline(**TWO)), EMPTY)


def test_a_canary_uses_the_first_cell() -> None:
    wide = pipeline(**TWO, connector=ConnectorSpec(managed=True, cells=2))
    context = RenderContext("image", "redis", "g", "password", "token")
    pod = canary_template(resolve(wide), Stage.TALKER, context).template
    variables = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}
    assert variables["REDIS_URL"] == "redis://demo-redis:6379/0"
    assert '"cells"' not in pod["metadata"]["annotations"]["syrinx.dev/config"]
