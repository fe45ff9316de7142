"""Metrics from a Prometheus: a real one, or one that answers what a real one did, or something else."""

from __future__ import annotations

import json
import re
import ssl
import time
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec
import pytest

from support.http_server import ScriptedResponse, http_server
from support.prometheus import OWNER, find_prometheus, history, metrics_reader, recorded, running
from support.tls import Authority
from syrinx_operator.cluster.objects.state import Owner
from syrinx_operator.cluster.runners.tuning import window
from syrinx_operator.cluster.watch.prometheus import CLOCK_QUERY, counters_query, selector
from syrinx_operator.cluster.watch.prometheus_access import DEFAULT_ACCESS, Access, access
from syrinx_operator.observed.counters import Observation
from syrinx_operator.observed.evidence import CallStats, Outcomes, ReplicaStats, StepStats, slo_statuses
from syrinx_operator.resource.fields.tuning import PrometheusSpec, SloSpec, TtfaObjective, TuningSpec
from syrinx_operator.resource.knobs import Identity
from syrinx_operator.resource.resolve import resolve
from syrinx_operator.resource.spec import PipelineSpec, default_pipeline
from syrinx_operator.resource.state.status import SloStatus
from syrinx_operator.resource.state.tuning_status import State
from syrinx_operator.tuner.policy import policy_of
from syrinx_operator.tuner.runner import Tuner
from syrinx_stages.contract.metrics import LIVE_STREAMS
from syrinx_stages.contract.stages import WORKERS

REPLICAS = tuple(ReplicaStats(name=f"demo-{stage}-0", stage=stage, ready=True, restarts=0) for stage in WORKERS)


def pipeline(url, **spec):
    tuning = TuningSpec(prometheus=PrometheusSpec(url=url))
    return msgspec.structs.replace(default_pipeline(), spec=PipelineSpec(tuning=tuning, **spec))


async def evidence(url, owner=OWNER, access=DEFAULT_ACCESS, **spec):
    """Returns the first reading, and the evidence that follows from it."""

    async def scrape(replica):
        raise AssertionError("stages are not scraped if there is a Prometheus")

    asked = pipeline(url, **spec)
    reading = await metrics_reader(access).read(asked, owner, (), scrape)
    identity = Identity(model="m", image="i", device="d")
    seen = Observation(
        snapshots=reading.snapshots,
        replicas=REPLICAS,
        identity=identity,
        scrape_interval=reading.scrape_interval,
        problem=reading.problem,
    )
    policy, now = policy_of(resolve(asked)), datetime.now(UTC)
    tuner = Tuner()
    tuner.step("demo", policy, State(), seen, now)
    return reading, tuner.evidence("demo", policy, now - timedelta(seconds=window(policy)), now)


class Measured(NamedTuple):
    """What the status reports of the evidence."""

    reason: str
    problem: str
    task_types: tuple[SloStatus, ...]
    live_streams: int
    underruns: int


async def measured(url, owner=OWNER, access=DEFAULT_ACCESS, **spec):
    reading, found = await evidence(url, owner, access, **spec)
    reports = slo_statuses(pipeline(url, **spec).spec.slo.ttfa, found)
    return Measured(
        reason=(reading.reason or "Stale") if found.problem else "",
        problem=found.problem,
        task_types=tuple(each for each in reports if each.requests),
        live_streams=found.live_streams,
        underruns=sum(stats.underruns for stats in found.streams.values()),
    )


def answer_recorded(asked):
    return ScriptedResponse(json.dumps(recorded()[asked.query["query"]]).encode())


def answers(**fields):
    """Returns the same response for every query."""
    return lambda asked: ScriptedResponse(**fields)


def vector(*values):
    result = [{"metric": {}, "value": [1.0, value]} for value in values]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


def gateway_of(demo, age=0.0):
    """Returns a series of an unused gateway."""
    metric = {"__name__": LIVE_STREAMS.name, "pod": f"demo-gateway-5f-{demo}"}
    return {"metric": metric, "values": [[round(time.time() - age, 3), "0"]]}


async def measured_of(result, clock=0.0, **spec):
    """Returns the reading of series from a Prometheus whose clock is `ahead` seconds ahead."""

    def answer(asked):
        if asked.query["query"] == CLOCK_QUERY:
            return ScriptedResponse(json.dumps(vector(str(time.time() + clock))).encode())
        data = {"resultType": "matrix", "result": result}
        return ScriptedResponse(json.dumps({"status": "success", "data": data}).encode())

    async with http_server(answer) as server:
        return await measured(server.url, **spec)


@pytest.fixture
async def address():
    """The URL of a Prometheus with the samples of `support.prometheus.history`."""
    async with running(find_prometheus(), history(time.time())) as url:
        yield url


# Counters ----------------------------------------------------------------------------------------------------


async def test_reads_the_pipelines_counters_of_the_last_five_minutes(address):
    """Two jobs scrape one gateway, one restarts, one is removed; there are other pipelines and namespaces."""
    slo = SloSpec(ttfa=(TtfaObjective(task_type="CustomVoice", ttfa_p95_ms=200),))
    found = await measured(address, slo=slo)
    assert found.problem == ""
    assert found.task_types == (
        SloStatus(task_type="CustomVoice", requests=25, within=0.6, ttfa_p95_ms=297, met="False"),
        SloStatus(task_type="Base", requests=1, ttfa_p95_ms=490, met="Unknown"),
    )
    assert (found.live_streams, found.underruns) == (26, 1)


async def test_reads_talkers_and_codecs_too(address):
    _, found = await evidence(address)
    talker, codec = found.replicas
    assert talker.frames == 8
    assert talker.steps == {4: StepStats(2, pytest.approx(0.05))}
    assert codec.calls == (CallStats(2, 8, "padded", 1, pytest.approx(0.05)),)


async def test_stream_outcomes_are_read_by_arm(address):
    _, found = await evidence(address)
    assert found.outcomes == {
        ("CustomVoice", ""): Outcomes(accepted=17, well=14, interrupted=1, refused=2),
        ("CustomVoice", "t1"): Outcomes(accepted=4, late=3),
    }


@pytest.mark.parametrize(("age", "reason"), [(80.0, ""), (95.0, "Stale"), (None, "Missing")])
async def test_no_data_is_never_zero(age, reason):
    found = await measured_of([] if age is None else [gateway_of(demo="0", age=age)])
    assert (found.reason, found.task_types, found.live_streams) == (reason, (), 0)


@pytest.mark.parametrize("seconds", [-60.0, 60.0])
async def test_clock_skew_is_reported(seconds):
    """Requests could not be attributed to the settings in force."""
    found = await measured_of([gateway_of(demo="0")], clock=seconds)
    assert found.reason == "Error"
    assert "its clock differs from the operator's by" in found.problem


@pytest.mark.parametrize(
    ("label", "value"),
    [
        ("le", "SECRET"),
        ("le", "-1"),
        ("le", "NaN"),
        ("value", "NaN"),
        ("value", "-1"),
        ("value", "1e300"),
        ("value", "SECRET"),
        ("time", 1e300),
    ],
)
async def test_an_invalid_counter_value_is_an_error(label, value):
    odd = recorded()
    result = odd[counters_query(OWNER, 300)]["data"]["result"]
    one = next(each for each in result if each["metric"].get("le") and each["metric"]["namespace"] == "voices")
    if label == "le":
        one["metric"]["le"] = value
    else:
        one["values"][0][["time", "value"].index(label)] = value

    async with http_server(lambda asked: ScriptedResponse(json.dumps(odd[asked.query["query"]]).encode())) as server:
        found = await measured(server.url)
    assert (found.reason, found.problem) == (
        "Error",
        "spec.tuning.prometheus: Prometheus returned values that are not counters",
    )


async def test_a_second_reading_queries_only_new_samples():
    """Samples in both responses count once."""
    now = datetime.now(UTC)
    async with http_server(answer_recorded) as server:
        metrics = metrics_reader(clock=lambda: now)
        asked = pipeline(server.url)
        await metrics.read(asked, OWNER, (), None)
        now += timedelta(seconds=30)
        await metrics.read(asked, OWNER, (), None)
    ranges = [each.query["query"].rpartition("[")[2] for each in server.requests if "pod=~" in each.query["query"]]
    assert ranges == ["300s]", "90s]"]


# Queries -----------------------------------------------------------------------------------------------------


def test_stages_are_selected_by_common_labels():
    generated = "[b-df-hj-np-tv-z0-9]+(-[b-df-hj-np-tv-z0-9]+)?"
    pods = rf"demo\\-gateway-{generated}|demo\\-talker-[0-9]+|demo\\-codec-[0-9]+"
    assert selector(OWNER) == f'namespace="voices",pod=~"{pods}"'


@pytest.mark.parametrize("with_canary", [False, True])
@pytest.mark.parametrize(
    ("pod", "is_canary"),
    [
        ("demo-gateway-7c5b6d8f4-x2k9p", False),
        ("demo-talker-0", False),
        ("demo-gateway-canary-7c5b6d8f4-x2k9p", True),
        ("demo-gateway-canary-7cx2k9p", True),  # Of a long name, truncated at the hash.
        ("demo-talker-canary-7c5b6d8f4-x2k9p", True),
        ("demo-gateway-talker-0", None),  # Those of pipelines `demo-gateway` and `demo-canary`.
        ("demo-gateway-gateway-7cx2k9p", None),
        ("demo-gateway-gateway-canary-7cx2k9p", None),
        ("demo-canary-gateway-7c5b6d8f4-x2k9p", None),
        ("demo-canary-talker-0", None),
    ],
)
def test_pods_of_a_canary_and_of_pipelines_with_similar_names_are_not_selected(pod, is_canary, with_canary):
    pattern = selector(OWNER, with_canary=with_canary).partition('pod=~"')[2].removesuffix('"').replace("\\\\", "\\")
    assert (re.fullmatch(pattern, pod) is not None) == (is_canary is False or (with_canary and is_canary is True))


def test_names_are_escaped_in_promql():
    odd = Owner('a"} or up{x="', 'b\\"\n', "u", generation=1)
    query = counters_query(odd, 300)
    assert 'namespace="b\\\\\\"\\n"' in query
    assert '\\"\\\\}\\\\ or\\\\ up\\\\{x=\\"' in query


# Untrusted servers -------------------------------------------------------------------------------------------


async def test_only_the_query_api_below_the_urls_path_is_requested():
    async with http_server(answer_recorded) as server:
        assert (await measured(f"{server.url}/select/0/prometheus/")).problem == ""
    assert {(asked.method, asked.path) for asked in server.requests} == {("GET", "/select/0/prometheus/api/v1/query")}


async def test_redirects_are_not_followed():
    async with http_server(answer_recorded) as inside:
        elsewhere = {"Location": f"{inside.url}/api/v1/query"}
        async with http_server(answers(status=302, headers=elsewhere)) as server:
            found = await measured(server.url)
    assert found.reason == "Error" and "302" in found.problem
    assert inside.requests == []


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (ScriptedResponse(b"SECRET of an inside page"), "HTTP status 200, not like a Prometheus API"),
        (ScriptedResponse(b"SECRET", status=401), "HTTP status 401: it requires a token, a password or a header"),
        (ScriptedResponse(b'{"status":"SECRET"}'), "unknown error type"),
        (
            ScriptedResponse(b'{"status":"error","errorType":"SECRET","error":"SECRET"}', status=400),
            "unknown error type",
        ),
        (ScriptedResponse(b'{"status":"error","errorType":"timeout","error":"SECRET"}', status=503), "503: timeout"),
        (
            ScriptedResponse(b'{"status":"success","data":{"resultType":"vector","result":[{"metric":"SECRET"}]}}'),
            "not like a Prometheus API",
        ),
        (ScriptedResponse(json.dumps(vector("SECRET")).encode()), "spec.tuning.prometheus"),
    ],
    ids=["a page", "a refusal", "JSON", "an unknown error", "a known error", "another shape", "no number"],
)
async def test_text_of_an_invalid_response_is_not_repeated(answer, message):
    async with http_server(lambda asked: answer) as server:
        found = await measured(server.url)
    assert found.reason == "Error"
    assert message in found.problem and "SECRET" not in found.problem


async def test_a_too_large_response_is_refused():
    async with http_server(answers(body=b" " * (9 << 20))) as server:
        assert "larger than 8 MiB" in (await measured(server.url)).problem


@pytest.mark.virtual
async def test_a_silent_prometheus_times_out():
    async with http_server(answers(hang=True)) as server:
        found = await measured(server.url)
    assert (found.reason, "within 10 seconds" in found.problem) == ("Error", True)


# Token and CA ------------------------------------------------------------------------------------------------


async def test_the_token_is_sent_only_to_its_address(tmp_path):
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    async with http_server(answer_recorded) as ours, http_server(answer_recorded) as theirs:
        mounted = Access(url=f"{ours.url}/anything", token_file=str(token))
        await measured(ours.url, access=mounted)
        await measured(theirs.url, access=mounted)
    assert {asked.headers.get("authorization") for asked in ours.requests} == {"Bearer s3cret"}
    assert {asked.headers.get("authorization") for asked in theirs.requests} == {None}


@pytest.mark.parametrize("content", ["", "two words", "s3cret\nX-More: yes", "s\u00e9cret"])
async def test_an_invalid_token_file_is_reported_without_its_content(tmp_path, content):
    token = tmp_path / "token"
    token.write_text(content)
    async with http_server(answer_recorded) as server:
        found = await measured(server.url, access=Access(url=server.url, token_file=str(token)))
    assert found.problem == f"spec.tuning.prometheus: {token} contains no token"


async def test_servers_are_verified_with_the_mounted_ca(tmp_path):
    authority = Authority(tmp_path / "ca")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*authority.server("IP:127.0.0.1"))
    async with http_server(answer_recorded, tls) as server:
        assert "CERTIFICATE_VERIFY_FAILED" in (await measured(server.url)).problem
        assert (await measured(server.url, access=Access(ca_file=str(authority.ca_file)))).problem == ""


def test_access_is_read_from_the_environment():
    assert access({}) == DEFAULT_ACCESS
    mounted = {"SYRINX_PROMETHEUS_URL": "https://p:9090", "SYRINX_PROMETHEUS_TOKEN_FILE": "/t"}
    assert access({**mounted, "SYRINX_PROMETHEUS_CA_FILE": "/c"}) == Access(
        url="https://p:9090", token_file="/t", ca_file="/c"
    )


@pytest.mark.parametrize("url", ["", "p:9090", "ftp://p", "https://"])
def test_a_token_requires_its_address(url):
    with pytest.raises(ValueError, match="needs SYRINX_PROMETHEUS_URL"):
        access({"SYRINX_PROMETHEUS_URL": url, "SYRINX_PROMETHEUS_TOKEN_FILE": "/t"})
