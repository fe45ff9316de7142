"""The emulated cluster's real pods: environment, volumes and processes of containers."""

import asyncio
import contextlib
from pathlib import Path

import httpx
import pytest

from support.kube import KubeCluster
from support.kube.real import RealKubelet

SECONDS = 60.0
SLEEP = ["sh", "-c", "sleep 60"]
SERVE = """
import http.server, os, pathlib, signal, sys
signal.signal(signal.SIGTERM, lambda *_: (print("drained", flush=True), sys.exit(0)))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path = pathlib.Path(os.environ["FILES"] + self.path)
        self.send_response(200 if path.exists() else 503)
        self.end_headers()
        self.wfile.write(path.read_bytes() if path.exists() else b"")
http.server.ThreadingHTTPServer((os.environ["POD_IP"], 8080), Handler).serve_forever()
"""
ADDRESS = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


@pytest.fixture
async def cluster():
    async with KubeCluster(pods="real") as cluster:
        await cluster.wait(lambda: cluster.get("serviceaccount", "default"), SECONDS, "the namespace")
        yield cluster


def pod(command=SLEEP, name="one", volumes=(), annotations=None, spec=None, **container):
    main = {"name": "main", "image": "any:1", "command": list(command), **container}
    meta = {"name": name, "labels": {"app": name}, "annotations": annotations or {}}
    content = {"containers": [main], "volumes": list(volumes), "terminationGracePeriodSeconds": 10, **(spec or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": content}


def config_map(name, **data):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def container_of(cluster, name="one"):
    return cluster.get("pod", name)["status"]["containerStatuses"][0]


async def wait_for_output(cluster, text, name="one"):
    await cluster.wait(lambda: text in cluster.kubelet.logs(name), SECONDS, f"{name} says {text!r}")


async def ready(cluster, name="one", wanted=True):
    await cluster.wait(lambda: container_of(cluster, name)["ready"] is wanted, SECONDS, f"{name} ready: {wanted}")


def members(group):
    """Returns the live processes of a group: a container and its children."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, its_group = path.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                found.append(int(path.parent.name))
    return found


def server(files, name="one", **fields):
    probe = {"httpGet": {"path": "/ready", "port": "http"}, "periodSeconds": 1, "failureThreshold": 1}
    return pod(
        ["python", "-c", SERVE],
        name,
        ports=[{"name": "http", "containerPort": 8080}],
        env=[ADDRESS, {"name": "FILES", "value": "/srv"}],
        volumes=[{"name": "files", "configMap": {"name": files}}],
        volumeMounts=[{"name": "files", "mountPath": "/srv"}],
        readinessProbe=probe,
        **fields,
    )


async def test_a_container_sees_its_environment_and_its_volumes(cluster):
    cluster.apply(config_map("plain", greeting="hello"))
    cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"key": "hidden"}})
    reference = {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "key"}}}
    greeting = {"name": "GREETING", "valueFrom": {"configMapKeyRef": {"name": "plain", "key": "greeting"}}}
    own = {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    whole = {"name": "WHOLE", "value": "$(GREETING) $(NAME) $$(NAME)"}
    items = [{"path": "note.txt", "fieldRef": {"fieldPath": "metadata.annotations['a/note']"}}]
    command = 'echo "$WHOLE|$SECRET|$0|$(cat /etc/note/note.txt)|$(cat /etc/plain/greeting)"; sleep 60'
    cluster.apply(
        pod(
            ["sh", "-c", command, "$(NAME)"],
            env=[reference, greeting, own, whole],
            annotations={"a/note": "from /etc/plain/greeting"},
            volumes=[
                {"name": "note", "downwardAPI": {"items": items}},
                {"name": "plain", "configMap": {"name": "plain"}},
            ],
            volumeMounts=[{"name": "note", "mountPath": "/etc/note"}, {"name": "plain", "mountPath": "/etc/plain"}],
        )
    )
    await wait_for_output(cluster, "hello one $(NAME)|hidden|one|from ")
    assert cluster.kubelet.logs("one").endswith("/plain/greeting|hello\n"), "paths in files lead to the volume"


async def test_a_container_waits_for_its_volumes(cluster):
    missing = {"name": "GREETING", "valueFrom": {"configMapKeyRef": {"name": "later", "key": "greeting"}}}
    cluster.apply(pod(["sh", "-c", "echo $GREETING; sleep 60"], env=[missing]))
    await cluster.wait(lambda: container_of(cluster)["state"]["waiting"]["message"], SECONDS, "a message")
    state = container_of(cluster)["state"]["waiting"]
    assert state["reason"] == "CreateContainerConfigError"
    assert state["message"] == 'couldn\'t find key greeting in configmap "later"'
    cluster.apply(config_map("later", greeting="hello"))
    await wait_for_output(cluster, "hello")


async def test_a_mounted_config_map_is_updated(cluster):
    cluster.apply(config_map("files", ready="yes", page="old"))
    cluster.apply(server("files"))
    await ready(cluster)
    address = cluster.get("pod", "one")["status"]["podIP"]
    async with httpx.AsyncClient(base_url=f"http://{address}:8080") as http:
        assert (await http.get("/page")).text == "old"
        cluster.patch("configmap", "files", {"data": {"page": "new"}})
        async with asyncio.timeout(SECONDS):
            while (await http.get("/page")).text != "new":
                await asyncio.sleep(0.01)


async def test_only_ready_pods_receive_a_services_connections(cluster):
    cluster.apply(config_map("files", ready="yes", page="here"))
    cluster.apply(server("files"))
    spec = {"selector": {"app": "one"}, "ports": [{"port": 80, "targetPort": "http"}]}
    cluster.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": spec})
    await ready(cluster)
    async with httpx.AsyncClient(base_url=cluster.service_url("web")) as http:
        assert (await http.get("/page")).text == "here"
    cluster.patch("configmap", "files", {"data": {"ready": None}})
    await ready(cluster, wanted=False)
    async with httpx.AsyncClient(base_url=cluster.service_url("web")) as http:
        with pytest.raises(httpx.TransportError):
            await http.get("/page")


async def test_a_service_name_resolves_before_the_service_exists(cluster):
    cluster.apply(config_map("files", ready="yes", page="found"))
    fetch = "import os, urllib.request as u; print(u.urlopen(os.environ['URL']).read().decode(), flush=True)"
    env = [{"name": "URL", "value": "http://web.default.svc:80/page"}]
    cluster.apply(pod(["python", "-c", fetch], "client", env=env))
    await cluster.wait(lambda: container_of(cluster, "client")["restartCount"], SECONDS, "a vain attempt")
    spec = {"selector": {"app": "one"}, "ports": [{"port": 80, "targetPort": 8080}]}
    cluster.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": spec})
    cluster.apply(server("files"))
    await wait_for_output(cluster, "found", "client")


async def test_a_killed_container_is_restarted(cluster):
    cluster.apply(pod(["sh", "-c", "echo up; sleep 60"]))
    await wait_for_output(cluster, "up")
    cluster.kubelet.kill("one")
    await cluster.wait(lambda: container_of(cluster)["restartCount"] == 1, SECONDS, "a restart")
    await wait_for_output(cluster, "up\nup")
    assert container_of(cluster)["lastState"]["terminated"]["exitCode"] == 137


async def test_init_containers_run_first_and_are_retried(cluster):
    script = "test -e /data/once || { touch /data/once; exit 1; }; echo done > /data/result"
    mounts = [{"name": "work", "mountPath": "/data"}]
    init = {"name": "init", "image": "any:1", "command": ["sh", "-c", script], "volumeMounts": mounts}
    cluster.apply(
        pod(
            ["sh", "-c", "cat /data/result; sleep 60"],
            volumes=[{"name": "work", "emptyDir": {}}],
            volumeMounts=mounts,
            spec={"initContainers": [init]},
        )
    )
    await wait_for_output(cluster, "done")
    [status] = cluster.get("pod", "one")["status"]["initContainerStatuses"]
    assert (status["restartCount"], status["state"]["terminated"]["exitCode"]) == (1, 0)


async def test_a_deleted_pod_gets_sigterm_first(cluster):
    cluster.apply(config_map("files", ready="yes"))
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "echo leaving"]}}}
    cluster.apply(server("files", "two", lifecycle=hook))
    await ready(cluster, "two")
    [process] = cluster.kubelet.pids("two")
    cluster.delete("pod", "two")
    assert "deletionTimestamp" in cluster.get("pod", "two")["metadata"]
    await cluster.wait(lambda: cluster.find("pod", "two") is None, SECONDS, "the pod to go")
    assert cluster.kubelet.logs("two").endswith("leaving\ndrained\n")
    assert members(process) == []


async def test_a_pod_that_ignores_sigterm_is_killed_after_its_grace_period(cluster):
    deaf = ["sh", "-c", 'trap "" TERM; echo up; while true; do sleep 0.1; done']
    cluster.apply(pod(deaf, spec={"terminationGracePeriodSeconds": 1}))
    await wait_for_output(cluster, "up")
    [process] = cluster.kubelet.pids("one")
    cluster.delete("pod", "one")
    await cluster.wait(lambda: cluster.find("pod", "one") is None, SECONDS, "the pod to go")
    assert members(process) == []


async def test_no_process_outlives_the_cluster():
    async with KubeCluster(pods="real") as cluster:
        await cluster.wait(lambda: cluster.get("serviceaccount", "default"), SECONDS, "the namespace")
        cluster.apply(pod(["sh", "-c", "sleep 61 & echo up; wait"]))
        await wait_for_output(cluster, "up")
        [process] = cluster.kubelet.pids("one")
        kubelet: RealKubelet = cluster.kubelet
        assert len(members(process)) == 2
    assert not kubelet.directory.exists()
    assert members(process) == []
