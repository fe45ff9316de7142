"""Measuring with a Prometheus: a real one where there is one, and what a real one answered everywhere."""

from __future__ import annotations

import json
import ssl
import time

import msgspec
import pytest

from support.answering import Answer, answering
from support.prometheus import ANSWERS, OWNER, found, history, running
from support.tls import Authority
from syrinx_operator.cluster import prometheus
from syrinx_operator.cluster.measure import Meter
from syrinx_operator.cluster.prometheus import PLAIN, Access, access, counters_query, selector
from syrinx_operator.cluster.state import Objective, Owner
from syrinx_operator.spec import (
    MonitoringSpec,
    PipelineSpec,
    PodMonitorSpec,
    PrometheusSpec,
    SloSpec,
    TtfaObjective,
    TuningSpec,
    default_pipeline,
)


def pipeline(url, **spec):
    tuning = TuningSpec(prometheus=PrometheusSpec(url=url))
    return msgspec.structs.replace(default_pipeline(), spec=PipelineSpec(tuning=tuning, **spec))


async def measured(url, owner=OWNER, access=PLAIN, **spec):
    async def scrape(replica):
        raise AssertionError("the gateways are not asked where there is a Prometheus")

    return await Meter(access).measure(pipeline(url, **spec), owner, (), scrape)


def recorded(asked):
    return Answer(json.dumps(json.loads(ANSWERS.read_text())[asked.query["query"].split()[0]]).encode())


def answers(**fields):
    """The same for every question."""
    return lambda asked: Answer(**fields)


def vector(*values):
    result = [{"metric": {}, "value": [1.0, value]} for value in values]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


@pytest.fixture(params=["recorded", "real"])
async def address(request):
    """A Prometheus that knows `support.prometheus.history`."""
    if request.param == "recorded":
        async with answering(recorded) as server:
            yield server.url
        return
    program = found()
    if program is None:
        pytest.skip("no prometheus with its promtool on this machine; PROMETHEUS names one")
    async with running(program, history(time.time())) as url:
        yield url


# What is counted ---------------------------------------------------------------------------------------------


async def test_every_count_of_the_last_five_minutes_and_nobody_elses(address):
    """Two jobs scrape one gateway, one restarts, one is gone; other pipelines and namespaces are beside them."""
    slo = SloSpec(ttfa=(TtfaObjective(task_type="CustomVoice", ttfa_p95_ms=200),))
    found = await measured(address, slo=slo)
    assert found.problem == ""
    assert found.task_types == (
        Objective(task_type="Base", requests=1, ttfa_p95_ms=pytest.approx(490.0)),
        Objective(task_type="CustomVoice", requests=25, within=15, ttfa_p95_ms=pytest.approx(297.2, abs=0.1)),
    )
    assert (found.live_streams, found.underruns) == (26, 1)


async def test_without_the_pipelines_series_it_says_what_is_missing():
    program = found()
    if program is None:
        pytest.skip("no prometheus with its promtool on this machine; PROMETHEUS names one")
    async with running(program, history(time.time())) as url:
        said = await measured(url, Owner("demo", "elsewhere", "u-2", generation=1))
    assert said.reason == "Missing"
    assert "demo-gateway-…" in said.problem and "elsewhere" in said.problem


async def test_a_prometheus_that_stopped_scraping_is_stale():
    program = found()
    if program is None:
        pytest.skip("no prometheus with its promtool on this machine; PROMETHEUS names one")
    async with running(program, history(time.time() - 150)) as url:
        assert (await measured(url)).reason == "Stale"
        slow = MonitoringSpec(pod_monitor=PodMonitorSpec(interval_seconds=60))
        assert (await measured(url, monitoring=slow)).problem == ""


@pytest.mark.parametrize(("age", "reason"), [("89.5", ""), ("90.5", "Stale"), ("NaN", "Missing"), (None, "Missing")])
async def test_no_data_is_never_zero(age, reason):
    def answer(asked):
        is_age = asked.query["query"].startswith("time()")
        return Answer(json.dumps(vector(*([age] if age and is_age else []))).encode())

    async with answering(answer) as server:
        said = await measured(server.url)
    assert (said.reason, said.task_types, said.live_streams) == (reason, (), 0)


@pytest.mark.parametrize(
    ("label", "value"),
    [("le", "SECRET"), ("le", "-1"), ("value", "NaN"), ("value", "-1"), ("value", "1e300"), ("value", "SECRET")],
)
async def test_a_value_that_is_no_count_is_an_error(label, value):
    odd = json.loads(ANSWERS.read_text())
    series = odd["sum"]["data"]["result"][0]
    if label == "le":
        series["metric"]["le"] = value
    else:
        series["values"][0][1] = value

    async with answering(lambda asked: Answer(json.dumps(odd[asked.query["query"].split()[0]]).encode())) as server:
        said = await measured(server.url)
    assert (said.reason, said.problem) == ("Error", "spec.tuning.prometheus: Prometheus answers what is no count")


async def test_series_that_were_not_asked_for_are_ignored():
    more = json.loads(ANSWERS.read_text())
    more["sum"]["data"]["result"].append({"metric": {"__name__": "up", "pod": "x"}, "values": [[1.0, "1"]]})

    async with answering(lambda asked: Answer(json.dumps(more[asked.query["query"].split()[0]]).encode())) as server:
        assert (await measured(server.url)).live_streams == 26


# The questions -----------------------------------------------------------------------------------------------


def test_the_gateways_are_found_by_labels_that_every_scrape_configuration_keeps():
    assert selector(OWNER) == r'namespace="voices",pod=~"demo\\-gateway-[a-z0-9]+(-[a-z0-9]+)?"'


def test_what_is_no_name_stays_inside_its_string():
    odd = Owner('a"} or up{x="', 'b\\"\n', "u", generation=1)
    query = counters_query(odd, 300)
    assert 'namespace="b\\\\\\"\\n"' in query
    assert '\\"\\\\}\\\\ or\\\\ up\\\\{x=\\"' in query


def test_a_long_window_is_looked_at_ten_times():
    assert counters_query(OWNER, 300).endswith("[300s:30s]")
    assert counters_query(OWNER, 3600).endswith("[3600s:360s]")


# Whoever answers there ---------------------------------------------------------------------------------------


async def test_only_the_query_api_is_asked_below_the_addresss_own_path():
    async with answering(recorded) as server:
        assert (await measured(f"{server.url}/select/0/prometheus/")).problem == ""
    assert {(asked.method, asked.path) for asked in server.asked} == {("GET", "/select/0/prometheus/api/v1/query")}


async def test_redirects_are_not_followed():
    async with answering(recorded) as inside:
        elsewhere = {"Location": f"{inside.url}/api/v1/query"}
        async with answering(answers(status=302, headers=elsewhere)) as server:
            said = await measured(server.url)
    assert said.reason == "Error" and "302" in said.problem
    assert inside.asked == []


async def test_the_environments_proxies_are_not_used(monkeypatch):
    async with answering(recorded) as proxy, answering(recorded) as server:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("ALL_PROXY", proxy.url)
        assert (await measured(server.url)).problem == ""
    assert proxy.asked == []


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(b"SECRET of an inside page"), "answers 200, and not as a Prometheus"),
        (Answer(b"SECRET", status=401), "wants a token"),
        (Answer(b'{"status":"SECRET"}'), "an error of no known type"),
        (Answer(b'{"status":"error","errorType":"SECRET","error":"SECRET"}', status=400), "an error of no known type"),
        (Answer(b'{"status":"error","errorType":"timeout","error":"SECRET"}', status=503), "503: timeout"),
        (Answer(b'{"status":"success","data":{"resultType":"vector","result":[{"metric":"SECRET"}]}}'), "not as"),
        (Answer(json.dumps(vector("SECRET")).encode()), "spec.tuning.prometheus"),
    ],
    ids=["a page", "a refusal", "JSON", "an unknown error", "a known error", "another shape", "no number"],
)
async def test_nothing_of_an_answer_that_is_none_is_repeated(answer, said):
    async with answering(lambda asked: answer) as server:
        found = await measured(server.url)
    assert found.reason == "Error"
    assert said in found.problem and "SECRET" not in found.problem


async def test_an_answer_without_end_is_given_up(monkeypatch):
    monkeypatch.setattr(prometheus, "MAX_ANSWER", 1 << 20)
    async with answering(answers(body=b" " * (3 << 20))) as server:
        assert "larger than 1 MiB" in (await measured(server.url)).problem


async def test_a_prometheus_that_says_nothing_is_given_up(monkeypatch):
    monkeypatch.setattr(prometheus, "DEADLINE", 0.05)
    async with answering(answers(hang=True)) as server:
        said = await measured(server.url)
    assert (said.reason, "within 0.05 seconds" in said.problem) == ("Error", True)


async def test_an_address_where_nobody_is():
    async with answering(recorded) as server:
        pass
    assert (await measured(server.url)).reason == "Error"


# Token and CA ------------------------------------------------------------------------------------------------


async def test_the_token_goes_only_to_the_address_it_is_for(tmp_path):
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    async with answering(recorded) as ours, answering(recorded) as theirs:
        mounted = Access(url=f"{ours.url}/anything", token_file=str(token))
        await measured(ours.url, access=mounted)
        await measured(theirs.url, access=mounted)
    assert {asked.headers.get("authorization") for asked in ours.asked} == {"Bearer s3cret"}
    assert {asked.headers.get("authorization") for asked in theirs.asked} == {None}


@pytest.mark.parametrize("content", ["", "two words", "s3cret\nX-More: yes", "s\u00e9cret"])
async def test_a_file_that_holds_no_token_is_told_without_its_content(tmp_path, content):
    token = tmp_path / "token"
    token.write_text(content)
    async with answering(recorded) as server:
        said = await measured(server.url, access=Access(url=server.url, token_file=str(token)))
    assert said.problem == f"spec.tuning.prometheus: {token} holds no token"


async def test_a_token_file_that_is_not_there_is_told(tmp_path):
    async with answering(recorded) as server:
        said = await measured(server.url, access=Access(url=server.url, token_file=str(tmp_path / "token")))
    assert "No such file" in said.problem


async def test_a_server_is_checked_with_the_ca_that_is_mounted(tmp_path):
    authority = Authority(tmp_path / "ca")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*authority.server("IP:127.0.0.1"))
    async with answering(recorded, tls) as server:
        assert "CERTIFICATE_VERIFY_FAILED" in (await measured(server.url)).problem
        assert (await measured(server.url, access=Access(ca_file=str(authority.ca_file)))).problem == ""


def test_the_installations_access_comes_from_its_environment():
    assert access({}) == PLAIN
    mounted = {"SYRINX_PROMETHEUS_URL": "https://p:9090", "SYRINX_PROMETHEUS_TOKEN_FILE": "/t"}
    assert access({**mounted, "SYRINX_PROMETHEUS_CA_FILE": "/c"}) == Access(
        url="https://p:9090", token_file="/t", ca_file="/c"
    )


@pytest.mark.parametrize("url", ["", "p:9090", "ftp://p", "https://"])
def test_a_token_needs_the_address_it_is_for(url):
    with pytest.raises(ValueError, match="needs SYRINX_PROMETHEUS_URL"):
        access({"SYRINX_PROMETHEUS_URL": url, "SYRINX_PROMETHEUS_TOKEN_FILE": "/t"})
