"""`kubectl syrinx`, with the rights of a user of the namespace."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.operators import write_kubeconfig
from cluster.pipeline import running

PIPELINE = "shown"
USER = "syrinx-test-user"
COMMAND = Path(sys.executable).with_name("kubectl-syrinx")
CANARY = {"canary": {"steps": [{"weight": 10, "pauseSeconds": 3600}]}}


@pytest.fixture(scope="module")
def demo(installed):
    """The Ready pipeline of this file."""
    with running(installed, PIPELINE, rollout=CANARY) as pipeline:
        yield pipeline


@pytest.fixture
def run(demo, tmp_path):
    """Runs the command as a user with one of the cluster's own roles, and returns exit status and output."""
    cluster = demo.cluster
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": USER}}
    subject = {"kind": "ServiceAccount", "name": USER, "namespace": cluster.namespace}

    def run(role, *arguments):
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
        binding = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": USER}}
        cluster.delete("RoleBinding", USER)
        cluster.apply({**binding, "roleRef": reference, "subjects": [subject]})
        environment = {**os.environ, "KUBECONFIG": str(write_kubeconfig(cluster, USER, tmp_path))}
        done = subprocess.run([COMMAND, *arguments], env=environment, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout + done.stderr

    cluster.apply(account)
    yield run
    cluster.delete("RoleBinding", USER)
    cluster.delete("ServiceAccount", USER)


def test_a_viewer_sees_the_status(demo, run):
    code, output = run("view", "status", PIPELINE)
    assert code == 0, output
    assert output.startswith(f"{PIPELINE} in namespace {demo.cluster.namespace}: ready"), output


def test_a_viewer_sees_the_log_of_a_gateway_if_nothing_is_wrong(run):
    code, output = run("view", "logs", PIPELINE, "--tail", "5")
    assert code == 0, output
    assert "the log of gateway" in output and "because all containers are ready" in output


def test_a_viewer_sees_the_log_that_explains_a_crash(demo, run):
    demo.edit({"rollout": None, "codec": {"env": [{"name": "PYTHONHOME", "value": "/nowhere"}]}})
    demo.wait_condition("Degraded", "CrashLoopBackOff")
    code, output = run("view", "status", PIPELINE)
    assert code == 0 and "CrashLoopBackOff" in output and "logs" in output, output
    code, output = run("view", "logs", PIPELINE)
    assert code == 0 and f"codec in {PIPELINE}-codec-1" in output and "exit code 1" in output, output
    assert "PYTHONHOME = '/nowhere'" in output
    demo.edit({"codec": {"env": None}})
    demo.wait_ready()
    demo.edit({"rollout": CANARY})


def test_an_editor_commands_a_canary_and_a_viewer_may_not(demo, run):
    demo.edit({"talker": {"podAnnotations": {"example.org/edition": "2"}}})
    demo.wait("to have a canary", lambda: demo.status.get("canary"))
    code, output = run("view", "rollout", "status", PIPELINE)
    assert code == 0 and output.startswith(f"{PIPELINE}: canary of "), output
    code, output = run("view", "rollout", "abort", PIPELINE)
    assert code == 1 and "forbidden" in output, output
    code, output = run("edit", "rollout", "abort", PIPELINE)
    assert code == 0, output
    demo.wait("to be rolled back", lambda: demo.status["canary"]["phase"] == "RolledBack")
    assert "aborted by the user" in run("view", "rollout", "status", PIPELINE)[1]
    demo.edit({"talker": {"podAnnotations": None}})
    demo.wait("to be without a canary", lambda: not demo.status.get("canary"))
