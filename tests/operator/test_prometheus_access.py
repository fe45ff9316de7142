"""Prometheus servers that demand a tenant, a password or a token, with what a pipeline's Secrets contain."""

from __future__ import annotations

import base64
import json
import ssl
import time
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from kubernetes.aio import client

from support.http_server import ScriptedResponse, http_server
from support.prometheus import OWNER, find_prometheus, history, metrics_reader, running
from support.resolved import resolved
from support.tls import Authority
from support.virtual import now
from syrinx_operator.cluster.watch.api import Api
from syrinx_operator.cluster.watch.prometheus import CLOCK_QUERY
from syrinx_operator.cluster.watch.prometheus_access import DEFAULT_ACCESS, Access
from syrinx_operator.cluster.watch.telemetry import Telemetry
from syrinx_operator.resource.fields.pods import SecretKey
from syrinx_operator.resource.fields.tuning import PrometheusSpec, TuningSpec
from syrinx_stages.contract.metrics import LIVE_STREAMS

CA = SecretKey(name="prometheus", key="ca.crt")
TOKEN = SecretKey(name="prometheus", key="token")
BASIC = f"Basic {base64.b64encode('ana:p ä:1'.encode()).decode()}"


@pytest.fixture
async def api(cluster):
    """The operator's connection to the emulated API server, which has the namespace of `OWNER`."""

    async def configuration():
        found = client.Configuration()
        found.host = cluster.url
        found.api_key = {"BearerToken": "Bearer operator"}
        return found

    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OWNER.namespace}})
    cluster.rights.rules.append((OWNER.namespace, {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}))
    async with Api(Telemetry(), configuration) as connected:
        yield connected


def write_secret(cluster, name, namespace=OWNER.namespace, **data):
    """Creates or changes a Secret. Underscores in keys stand for hyphens."""
    encoded = {key.replace("_", "-"): base64.b64encode(value).decode() for key, value in data.items()}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": encoded}
    cluster.apply(secret, namespace=namespace)


async def read(api, url, reader=None, access=DEFAULT_ACCESS, **prometheus):
    """Returns a reading of the metrics of `OWNER` from a Prometheus."""
    pipeline = resolved(tuning=TuningSpec(prometheus=PrometheusSpec(url=url, **prometheus)))
    return await (reader or metrics_reader(access, get=api.get)).read(pipeline, OWNER, (), None)


DEMANDS = {
    "/tenant": ("x-scope-orgid", "team-a"),
    "/key": ("x-api-key", "k 1"),
    "/basic": ("authorization", BASIC),
    "/bearer": ("authorization", "Bearer s3cret"),
}
"""The header that each path of the gate demands."""


def gate(prometheus):
    """Returns what a proxy answers that demands a header before it asks a Prometheus."""

    def answer(asked):
        path = f"/{asked.path.split('/')[1]}"
        name, value = DEMANDS[path]
        if asked.headers.get(name) != value:
            return ScriptedResponse(b"no org id", status=401)
        found = httpx.get(prometheus + asked.path.removeprefix(path), params=asked.query, trust_env=False)
        return ScriptedResponse(found.content, found.status_code)

    return answer


async def test_a_real_prometheus_that_demands_a_tenant_a_password_or_a_token(cluster, api, tmp_path):
    authority = Authority(tmp_path / "ca")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*authority.server("IP:127.0.0.1"))
    write_secret(cluster, "prometheus", **{"ca.crt": authority.ca_file.read_bytes(), "token": b"s3cret\n"})
    write_secret(cluster, "headers", X_Scope_OrgID=b"team-a\n", x_api_key=b"k 1")
    write_secret(cluster, "login", username=b"ana", password="p ä:1\n".encode())
    async with (
        running(find_prometheus(), history(time.time())) as prometheus,
        http_server(gate(prometheus), tls) as server,
    ):
        for path, sent in {
            "/tenant": {"headers_secret": "headers"},
            "/key": {"headers_secret": "headers", "token_secret": TOKEN},
            "/basic": {"basic_auth_secret": "login"},
            "/bearer": {"token_secret": TOKEN},
        }.items():
            found = await read(api, server.url + path, ca_secret=CA, **sent)
            assert found.snapshots and not found.problem, path
            refused = await read(api, server.url + path, ca_secret=CA)
            assert "HTTP status 401: it requires a token, a password or a header" in refused.problem
        unverified = await read(api, f"{server.url}/basic", basic_auth_secret="login")
    assert "CERTIFICATE_VERIFY_FAILED" in unverified.problem


def unused(clock=now):
    """Returns what a Prometheus answers that scrapes an unused gateway."""

    def answer(asked):
        at = clock().timestamp()
        metric = {"__name__": LIVE_STREAMS.name, "pod": "demo-gateway-5f-bbbbb"}
        is_clock = asked.query["query"] == CLOCK_QUERY
        series = {"metric": {}, "value": [at, str(at)]} if is_clock else {"metric": metric, "values": [[at, "0"]]}
        return ScriptedResponse(json.dumps({"status": "success", "data": {"result": [series]}}).encode())

    return answer


async def test_the_credentials_of_a_pipeline_replace_those_of_the_installation(cluster, api, tmp_path):
    (tmp_path / "token").write_text("installation")
    write_secret(cluster, "prometheus", token=b"pipeline")
    write_secret(cluster, "headers", X_Scope_OrgID=b"team-a")
    async with http_server(unused()) as server:
        access = Access(url=server.url, token_file=str(tmp_path / "token"))
        await read(api, server.url, access=access, token_secret=TOKEN)
        await read(api, server.url, access=access, headers_secret="headers")
    sent = [(each.headers.get("authorization"), each.headers.get("x-scope-orgid")) for each in server.requests]
    assert sent[::2] == [("Bearer pipeline", None), ("Bearer installation", "team-a")]


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"headers_secret": "none"}, "headersSecret: there is no Secret none in namespace voices"),
        ({"headers_secret": "empty"}, "headersSecret: Secret empty has no keys, which are the names of headers"),
        ({"headers_secret": "host"}, "headersSecret: Secret host: the header Host is already set"),
        ({"headers_secret": "odd"}, "headersSecret: Secret odd: X-A must be a line of up to 16384 ASCII characters"),
        (
            {"headers_secret": "authorization", "basic_auth_secret": "login"},
            "headersSecret: Secret authorization: the header Authorization is already set",
        ),
        ({"token_secret": TOKEN}, "tokenSecret: Secret prometheus has no key token, or it is empty"),
        (
            {"token_secret": SecretKey(name="odd", key="X-A")},
            "tokenSecret: Secret odd: X-A must be a line of up to 16384 ASCII characters",
        ),
        ({"basic_auth_secret": "odd"}, "basicAuthSecret: Secret odd has no key username, or it is empty"),
        ({"basic_auth_secret": "half"}, "basicAuthSecret: Secret half has no key password, or it is empty"),
        ({"basic_auth_secret": "colon"}, "basicAuthSecret: Secret colon: username must not contain a colon"),
        ({"ca_secret": CA}, "caSecret: Secret prometheus: ca.crt has no certificates (PEM)"),
    ],
)
async def test_what_is_wrong_with_a_secret_is_said_without_its_content(cluster, api, spec, problem):
    write_secret(cluster, "empty")
    write_secret(cluster, "host", Host=b"SECRET")
    write_secret(cluster, "odd", X_A=b"SECRET\nX-B: 1")
    write_secret(cluster, "authorization", Authorization=b"SECRET")
    write_secret(cluster, "login", username=b"ana", password=b"SECRET")
    write_secret(cluster, "half", username=b"ana")
    write_secret(cluster, "colon", username=b"SE:CRET", password=b"SECRET")
    write_secret(cluster, "prometheus", **{"ca.crt": b"SECRET"})
    found = await read(api, "https://127.0.0.1:1", **spec)
    assert (found.reason, found.problem) == ("Error", f"spec.tuning.prometheus.{problem}")


async def test_a_secret_that_may_not_be_read_is_reported(cluster, api):
    write_secret(cluster, "headers", X_Scope_OrgID=b"team-a")
    cluster.rights.rules.pop()
    found = await read(api, "http://127.0.0.1:1", headers_secret="headers")
    assert found.problem.startswith("spec.tuning.prometheus.headersSecret: Secret headers cannot be read: ")
    assert found.problem.endswith("(Forbidden)")


def readings_of(cluster):
    """Returns how many times the Secrets of `OWNER` have been read."""
    return sum(each.method == "GET" and "/secrets/" in each.path for each in cluster.requests)


async def test_a_changed_secret_is_read_within_the_period_and_after_a_refusal(cluster, api):
    at, tenant = datetime(2026, 1, 1, tzinfo=UTC), "team-a"

    def answer(asked):
        accepted = asked.headers.get("x-scope-orgid") == tenant
        return unused(lambda: at)(asked) if accepted else ScriptedResponse(status=401)

    reader = metrics_reader(clock=lambda: at, get=api.get, secret_seconds=300)
    write_secret(cluster, "headers", X_Scope_OrgID=b"team-a")
    async with http_server(answer) as server:

        async def problem(after):
            nonlocal at
            at += timedelta(seconds=after)
            return (await read(api, server.url, reader, headers_secret="headers")).problem

        assert [await problem(30) for _ in range(3)] == ["", "", ""] and readings_of(cluster) == 1
        write_secret(cluster, "headers", X_Scope_OrgID=b"team-b")
        assert await problem(200) == "" and readings_of(cluster) == 1
        tenant = "team-b"
        assert "401" in await problem(30) and readings_of(cluster) == 1
        assert await problem(30) == "" and readings_of(cluster) == 2
        assert await problem(300) == "" and readings_of(cluster) == 3


@pytest.mark.virtual
async def test_the_status_names_a_missing_secret_and_nothing_shows_its_content(harness):
    def answer(asked):
        accepted = asked.headers.get("x-scope-orgid") == "SECRET-TENANT"
        return unused()(asked) if accepted else ScriptedResponse(b"no org id", status=401)

    def metrics(status, text):
        found = harness.condition("MetricsAvailable")
        return found["status"] == status and text in found["message"]

    async with http_server(answer) as server, harness.operator() as operator:
        harness.apply(tuning={"prometheus": {"url": server.url, "headersSecret": "headers"}})
        missing = "spec.tuning.prometheus.headersSecret: there is no Secret headers in namespace default"
        await harness.wait(lambda: metrics("False", missing), "the missing Secret is named")
        write_secret(harness.cluster, "headers", "default", X_Scope_OrgID=b"SECRET-OTHER")
        await harness.wait(lambda: metrics("False", "HTTP status 401"), "the tenant is refused")
        write_secret(harness.cluster, "headers", "default", X_Scope_OrgID=b"SECRET-TENANT")
        await harness.wait(lambda: metrics("True", ""), "the tenant is accepted")
        shown = json.dumps([harness.cluster.get("ttspipeline", "demo"), harness.cluster.list("event"), harness.live()])
        assert "SECRET" not in shown + operator.log + operator.metrics()
