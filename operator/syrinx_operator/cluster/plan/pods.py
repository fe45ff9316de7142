"""The pod template of a stage: what gateway, talker and codec share."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from syrinx_operator.cluster import names
from syrinx_operator.cluster.plan import environment, model, settings, volumes
from syrinx_operator.cluster.plan.objects import given, present
from syrinx_operator.cluster.plan.release import Running
from syrinx_operator.cluster.plan.security import container_security, pod_security
from syrinx_operator.cluster.state import Component, Manifest
from syrinx_operator.cluster.topology import members, workloads
from syrinx_operator.resource.pods import PodFields, Resources
from syrinx_operator.resource.rules import ADMIN_PORT
from syrinx_operator.resource.spec import GatewaySpec, PipelineSpec, StageSpec, TTSPipeline

USER = 65_532
"""Nobody's: nothing in the image belongs to it."""
GRACE_SECONDS = 15
"""After the drain: time to hand over what is left and to end."""
ENDPOINT_SECONDS = 5
"""A stopping gateway goes on as it was for so long: until then its address may still be handed out."""
GATEWAY_STARTUP_SECONDS = 300
"""To be alive, not ready: a gateway waits for its talkers and codecs however long they take."""
_STARTUP_PERIOD = 5
_CONFIGS = (names.CONFIG_ANNOTATION, names.GUEST_CONFIG_ANNOTATION)
_SCRAPE = {
    "prometheus.io/scrape": "true",
    "prometheus.io/port": str(ADMIN_PORT),
    "prometheus.io/path": "/metrics",
}


def stage_inputs(pipeline: TTSPipeline, stage: Component, running: Running) -> dict[str, Any]:
    """What a stage's pod template is made from. What changes live, and other parts' fields, are not among it."""
    spec = pipeline.spec
    part = settings.stage_spec(spec, stage)
    live = {field.encode_name for field in msgspec.structs.fields(part) if field.name in settings.LIVE[stage]}
    return {
        "stage": {field: value for field, value in given(part).items() if field not in live},
        **{guest.value: spec.codec.max_resident for guest in members(spec, stage)[1:]},
        "running": [running.image, running.generation, running.password_uid],
        "model": model.inputs(spec.model, stage),
        "connector": {} if spec.connector.managed else given(spec.connector),
        "scrapeAnnotations": spec.monitoring.scrape_annotations,
        **pull_inputs(spec),
    }


def pull_inputs(spec: PipelineSpec) -> dict[str, Any]:
    """What every pod of the pipeline is pulled with."""
    return {"imagePullPolicy": spec.image_pull_policy, "imagePullSecrets": [s.name for s in spec.image_pull_secrets]}


def stage_template(pipeline: TTSPipeline, stage: Component, running: Running) -> Manifest:
    """The pod template of a stage."""
    spec = pipeline.spec
    part = settings.stage_spec(spec, stage)
    pod = {
        **pod_base(pipeline, stage, USER),
        "terminationGracePeriodSeconds": _grace_seconds(part),
        "containers": [_container(pipeline, stage, running)],
        "volumes": volumes.volumes(pipeline.name, stage, spec, part.extra_volumes),
        **_placement(pipeline.name, stage, part),
    }
    if spec.model.hugging_face is not None:
        pod["initContainers"] = [_fetch(pipeline, each, running) for each in members(spec, stage)]
    return {"metadata": _metadata(pipeline, stage, running), "spec": pod}


def pod_base(pipeline: TTSPipeline, component: Component, user: int) -> Manifest:
    """What every pod of the pipeline has."""
    return {
        "serviceAccountName": names.service_account(pipeline.name, component),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(user),
        **present(imagePullSecrets=[{"name": secret.name} for secret in pipeline.spec.image_pull_secrets]),
    }


def image(spec: PipelineSpec, name: str) -> Manifest:
    """A container's image and when it is pulled."""
    return {"image": name, **present(imagePullPolicy=spec.image_pull_policy)}


def compute(resources: Resources) -> Manifest:
    """A container's compute resources, as Kubernetes prints quantities."""
    return present(
        requests={name: str(amount) for name, amount in resources.requests.items()},
        limits={name: str(amount) for name, amount in resources.limits.items()},
    )


def _metadata(pipeline: TTSPipeline, stage: Component, running: Running) -> Manifest:
    part = settings.stage_spec(pipeline.spec, stage)
    configs = {
        annotation: settings.start_text(settings.start_config(pipeline, each, running.generation))
        for annotation, each in zip(_CONFIGS, members(pipeline.spec, stage), strict=False)
    }
    annotations = {
        **(_SCRAPE if pipeline.spec.monitoring.scrape_annotations else {}),
        **part.pod_annotations,
        **configs,
        **present(**{names.PASSWORD_ANNOTATION: running.password_uid}),
    }
    return {"labels": {**part.pod_labels, **names.labels(pipeline.name, stage)}, "annotations": annotations}


def _container(pipeline: TTSPipeline, stage: Component, running: Running) -> Manifest:
    spec = pipeline.spec
    part = settings.stage_spec(spec, stage)
    container = {
        "name": stage.value,
        **image(spec, running.image),
        "command": _command(spec, stage),
        "env": environment.stage_environment(pipeline.name, spec.connector, part.env),
        "ports": _ports(spec, stage),
        **present(resources=compute(part.resources)),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": container_security(),
        "volumeMounts": volumes.mounts(stage, spec, part.extra_volumes),
        **_probes(part),
    }
    if isinstance(part, GatewaySpec):
        wait = ["python", "-c", f"import time; time.sleep({ENDPOINT_SECONDS})"]
        container["lifecycle"] = {"preStop": {"exec": {"command": wait}}}
    return container


def _fetch(pipeline: TTSPipeline, stage: Component, running: Running) -> Manifest:
    hub = pipeline.spec.model.hugging_face
    assert hub is not None
    part = settings.stage_spec(pipeline.spec, stage)
    # The user's own, for a proxy or its certificates; without GPUs, for a quota that wants every container limited.
    env = [*model.fetch_environment(hub), *environment.BASE, *environment.user_environment(part.env)]
    return {
        "name": "fetch" if stage in workloads(pipeline.spec) else f"fetch-{stage}",
        **image(pipeline.spec, running.image),
        "command": model.fetch_command(hub, stage),
        "env": env,
        **present(resources=compute(_without_devices(part.resources))),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": container_security(),
        "volumeMounts": volumes.fetch_mounts(part.extra_volumes),
    }


def _without_devices(resources: Resources) -> Resources:
    return Resources(
        requests={name: amount for name, amount in resources.requests.items() if "/" not in name},
        limits={name: amount for name, amount in resources.limits.items() if "/" not in name},
    )


def _command(spec: PipelineSpec, stage: Component) -> list[str]:
    """Stages that share a pod share a process."""
    if members(spec, stage) == (stage,):
        return ["python", "-m", f"syrinx_stages.{stage}", names.START_FILE]
    return ["python", "-m", "syrinx_stages.colocated", names.START_FILE, names.GUEST_START_FILE]


def _ports(spec: PipelineSpec, stage: Component) -> list[Manifest]:
    ports = [_port(names.HTTP_PORT_NAME, spec.gateway.port)] if stage is Component.GATEWAY else []
    ports.append(_port(names.ADMIN_PORT_NAME, ADMIN_PORT))
    return ports + [_port(names.GUEST_ADMIN_PORT_NAME, names.GUEST_ADMIN_PORT) for _ in members(spec, stage)[1:]]


def _port(name: str, port: int) -> Manifest:
    return {"name": name, "containerPort": port, "protocol": "TCP"}


def _probes(part: PodFields) -> Manifest:
    """A stage that starts is left alone until it is ready; a gateway, which waits for others, until it is alive."""
    if isinstance(part, StageSpec):
        started, seconds = "/readyz", part.startup_seconds
    else:
        started, seconds = "/healthz", GATEWAY_STARTUP_SECONDS
    return {
        "startupProbe": _probe(started, period=_STARTUP_PERIOD, failures=math.ceil(seconds / _STARTUP_PERIOD)),
        "readinessProbe": _probe("/readyz", period=5, failures=2),
        "livenessProbe": _probe("/healthz", period=10, failures=6),
    }


def _probe(path: str, *, period: int, failures: int) -> Manifest:
    get = {"path": path, "port": names.ADMIN_PORT_NAME, "scheme": "HTTP"}
    return {"httpGet": get, "periodSeconds": period, "timeoutSeconds": 5, "failureThreshold": failures}


def _grace_seconds(part: settings.AnyStage) -> int:
    endpoint = ENDPOINT_SECONDS if isinstance(part, GatewaySpec) else 0
    return part.drain_seconds + GRACE_SECONDS + endpoint


def _placement(pipeline: str, stage: Component, part: PodFields) -> Manifest:
    selector = {"matchLabels": names.selector(pipeline, stage)}
    spread = [{"labelSelector": selector, **constraint} for constraint in part.topology_spread_constraints]
    nodes = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    return {
        "topologySpreadConstraints": spread or [{**nodes, "labelSelector": selector}],
        **present(
            nodeSelector=dict(part.node_selector),
            tolerations=[{"operator": toleration.operator, **given(toleration)} for toleration in part.tolerations],
            affinity=part.affinity,
            priorityClassName=part.priority_class_name,
            runtimeClassName=part.runtime_class_name,
        ),
    }
