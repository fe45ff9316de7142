"""Pod templates and volumes of gateway, talker and codec, and what they share with the managed Redis's."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import msgspec

from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.objects.state import REDIS, Component, Manifest, Owner
from syrinx_operator.cluster.plan import records
from syrinx_operator.cluster.plan.objects import manifest, non_defaults, omit_empty, secret_ref
from syrinx_operator.cluster.plan.records import RenderContext
from syrinx_operator.cluster.plan.workload import models
from syrinx_operator.cluster.plan.workload.pod_template import with_patch
from syrinx_operator.resource.fields.gateway import GatewaySpec
from syrinx_operator.resource.fields.pods import (
    ADMIN_PORT,
    EnvVar,
    ExtraVolume,
    PodFields,
    Resources,
    SecretKey,
    Storage,
    Toleration,
)
from syrinx_operator.resource.resolve import RedisForm, ResolvedGateway, ResolvedPipeline
from syrinx_operator.resource.spec import PipelineSpec, StageSpec
from syrinx_operator.resource.stage_config import ENVIRONMENT, tracing_environment
from syrinx_stages.contract.settings import DEFAULT_RESIDENT, NAMESPACE_VARIABLE, TOKEN_VARIABLE
from syrinx_stages.contract.stages import Stage

USER = 65_532
"""An unprivileged UID that owns no file in the image."""
GRACE_SECONDS = 15
"""Seconds after the drain to hand over remaining work and exit."""
ENDPOINT_SECONDS = 5
"""Seconds that a stopping gateway keeps serving, until it is removed from all endpoints."""
GATEWAY_STARTUP_SECONDS = 300
"""Seconds within which a gateway that starts must answer; it becomes ready only once talkers and codecs are."""
_GATEWAY_WAIT_SECONDS = 86_400
"""How long a gateway may wait for talkers and codecs before it is restarted, only to wait again."""
_STARTUP_MARGIN = 30
"""Seconds that the command of a startup probe has to start, and to say why the stages are not ready."""
_SCRAPE_ANNOTATIONS = {
    "prometheus.io/scrape": "true",
    "prometheus.io/port": str(ADMIN_PORT),
    "prometheus.io/path": "/metrics",
}
MODELS = "syrinx-models"
"""Name of the volume with the checkpoint."""
_BASE_ENVIRONMENT: list[Manifest] = [
    {"name": name, "value": value} for name, value in {"HOME": "/tmp", **ENVIRONMENT}.items()
]


Mounted = tuple[Manifest, Manifest]
"""A volume and its mount."""


def mounted(name: str, source: Manifest, path: str, *, read_only: bool = True, sub_path: str | None = None) -> Mounted:
    """Returns a volume and its mount."""
    mount = {"name": name, "mountPath": path, **omit_empty(readOnly=read_only or None, subPath=sub_path)}
    return {"name": name, **source}, mount


TMP = mounted("syrinx-tmp", {"emptyDir": {}}, "/tmp", read_only=False)


def stage_inputs(pipeline: ResolvedPipeline, stage: Stage, context: RenderContext) -> dict[str, Any]:
    """Returns the inputs of a stage's pod template, without live settings and fields of other stages."""
    spec, resolved = pipeline.spec, pipeline.stage(stage)
    live = records.LIVE_FIELDS[stage]
    restarting = [field.encode_name for field in msgspec.structs.fields(resolved.spec) if field.name not in live]
    own = {field: value for field, value in non_defaults(resolved.spec).items() if field in restarting}
    model = non_defaults(spec.model)
    if not isinstance(resolved, ResolvedGateway):
        # Resources that were stored when every one had this value name it, and others do not: both mean the same pods.
        own.pop("maxResident", None)
        own |= {} if resolved.max_resident == DEFAULT_RESIDENT else {"maxResident": resolved.max_resident}
        model.pop("name", None)
    if spec.model.cache is not None:
        # Not its size.
        model["cache"] = {"claim": spec.model.cache.claim}
    return {
        "stage": own,
        **({Stage.CODEC.value: pipeline.codec.max_resident} if len(pipeline.in_pod(stage)) > 1 else {}),
        "running": [context.image, context.generation, context.password_uid],
        "model": model,
        "connector": {} if spec.connector.managed else non_defaults(spec.connector),
        "scrapeAnnotations": spec.monitoring.scrape_annotations,
        # Omitted without them, so that an upgrade of the operator restarts no pod.
        **omit_empty(
            tracing=tracing_environment(spec),
            voices=[non_defaults(voice) for voice in spec.voices] if stage is Stage.GATEWAY else [],
        ),
        **pull_inputs(spec),
    }


def pull_inputs(spec: PipelineSpec) -> dict[str, Any]:
    """Returns the image pull settings and users of every pod."""
    return {
        "imagePullPolicy": spec.image_pull_policy,
        "imagePullSecrets": [secret.name for secret in spec.image_pull_secrets],
        # Omitted for the default, so that an upgrade of the operator restarts no pod.
        **({} if spec.fixed_user else {"fixedUser": False}),
    }


def stage_template(pipeline: ResolvedPipeline, stage: Stage, context: RenderContext) -> Manifest:
    """Returns the pod template of a stage."""
    spec = pipeline.spec
    part, processes = pipeline.stage(stage).spec, places(pipeline, stage)
    mounted = volumes(pipeline, stage, part.extra_volumes)
    module = "colocated" if len(processes) > 1 else stage.value
    public = [(names.HTTP_PORT_NAME, spec.gateway.port)] if stage is Stage.GATEWAY else []
    private = [
        own
        for place in processes.values()
        for own in ((place.admin_name, place.admin_port), (place.settings_name, place.settings_port))
    ]
    files = [place.start_file for place in processes.values()]
    command = ["python", "-m", f"syrinx_stages.{module}", *files]
    own = container(
        spec,
        stage.value,
        context.image,
        part.resources,
        {"command": command, "env": _environment(pipeline, part.env)},
        ports=[port(*each) for each in (*public, *private)],
        mounts=[mount for _, mount in mounted],
    )
    pod = {
        **pod_base(pipeline, stage, USER),
        "terminationGracePeriodSeconds": part.drain_seconds + GRACE_SECONDS,
        "containers": [{**own, **_probes(stage, part, files)}],
        "volumes": [volume for volume, _ in mounted],
        **_placement(pipeline.name, stage, part),
    }
    if isinstance(part, GatewaySpec):
        wait = ["python", "-c", f"import time; time.sleep({ENDPOINT_SECONDS})"]
        pod["containers"][0]["lifecycle"] = {"preStop": {"exec": {"command": wait}}}
        pod["terminationGracePeriodSeconds"] += ENDPOINT_SECONDS
    if spec.model.is_downloaded:
        pod["initContainers"] = [_fetch_container(pipeline, each, context) for each in processes]
    return with_patch({"metadata": _metadata(pipeline, stage, context), "spec": pod}, part.pod_template)


def places(pipeline: ResolvedPipeline, stage: Stage) -> dict[Stage, names.Place]:
    """Returns the stages that run in the pods of a stage, its own first, and their places."""
    return dict(zip(pipeline.in_pod(stage), (names.OWN, names.COLOCATED), strict=False))


def pod_base(pipeline: ResolvedPipeline, component: Component, user: int) -> Manifest:
    """Returns the fields common to every pod of the pipeline, with the security context of the restricted profile."""
    return {
        "serviceAccountName": f"{pipeline.name}-{component if component in REDIS else 'stages'}",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            **({"runAsUser": user, "runAsGroup": user, "fsGroup": user} if pipeline.spec.fixed_user else {}),
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **omit_empty(imagePullSecrets=[{"name": secret.name} for secret in pipeline.spec.image_pull_secrets]),
    }


def container(
    spec: PipelineSpec,
    name: str,
    image: str,
    resources: Resources,
    process: Manifest,
    *,
    ports: Sequence[Manifest] = (),
    mounts: Sequence[Manifest],
) -> Manifest:
    """Returns a container; `process` has its command or arguments, and its environment."""
    requirements = {
        part: {name: str(amount) for name, amount in amounts.items()}
        for part, amounts in (("requests", resources.requests), ("limits", resources.limits))
    }
    return {
        "name": name,
        "image": image,
        **omit_empty(imagePullPolicy=spec.image_pull_policy),
        **process,
        **omit_empty(ports=list(ports), resources=omit_empty(**requirements)),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": list(mounts),
    }


def managed_password(pipeline: ResolvedPipeline) -> SecretKey:
    """Returns the Secret key of the stages' password for the managed Redis."""
    redis = pipeline.redis
    assert redis is not None
    return SecretKey(name=names.workload(pipeline.name, redis), key=names.PASSWORD_KEY)


def _managed_url(pipeline: ResolvedPipeline, cell: int) -> str:
    """Returns the URL of a cell's managed Redis."""
    if pipeline.redis is RedisForm.SINGLE:
        host = names.workload(pipeline.name, names.redis_cell(RedisForm.SINGLE, cell))
        return f"redis://{host}:{names.REDIS_PORT}/0"
    sentinels = ",".join(f"{host}:{names.SENTINEL_PORT}" for host in names.redis_hosts(pipeline.name, cell))
    return f"redis+sentinel://{sentinels}/{names.PRIMARY}/0"


def secret_annotations(context: RenderContext) -> dict[str, Any]:
    """Returns the annotations that change with the token and the password, so that pods restart for new ones."""
    password: dict[str, Any] = omit_empty(**{names.PASSWORD_ANNOTATION: context.password_uid})
    return {**password, names.TOKEN_ANNOTATION: context.token_uid}


def _metadata(pipeline: ResolvedPipeline, stage: Stage, context: RenderContext) -> Manifest:
    part = pipeline.stage(stage).spec
    configs = {
        place.annotation: records.start_config(pipeline, each, context.generation)
        for each, place in places(pipeline, stage).items()
    }
    annotations = {
        **(_SCRAPE_ANNOTATIONS if pipeline.spec.monitoring.scrape_annotations else {}),
        **part.pod_annotations,
        **configs,
        **secret_annotations(context),
    }
    return {"labels": {**part.pod_labels, **names.labels(pipeline.name, stage)}, "annotations": annotations}


def _fetch_container(pipeline: ResolvedPipeline, stage: Stage, context: RenderContext) -> Manifest:
    part = pipeline.stage(stage).spec
    # Extended resources such as GPUs are left out; the rest stays for a quota that requires limits on all containers.
    resources = Resources(
        requests={name: amount for name, amount in part.resources.requests.items() if "/" not in name},
        limits={name: amount for name, amount in part.resources.limits.items() if "/" not in name},
    )
    process = models.fetch_process(pipeline.spec.model, [stage], fetch_environment(part.env))
    name = "fetch" if stage in pipeline.workloads else f"fetch-{stage}"
    models_mount = mounted(MODELS, {}, names.MODELS_DIRECTORY, read_only=False)
    mounts = [mount for _, mount in (TMP, models_mount, *extra_mounts(part.extra_volumes))]
    return container(pipeline.spec, name, context.image, resources, process, mounts=mounts)


def _environment(pipeline: ResolvedPipeline, user: Sequence[EnvVar]) -> list[Manifest]:
    """Returns a stage's environment.

    The user's variables replace those of logs and traces; the resource's rules refuse the other names used here.
    """
    connector = pipeline.spec.connector
    password = managed_password(pipeline) if connector.managed else connector.password_secret
    managed = [_managed_url(pipeline, cell) for cell in range(connector.cells)] if connector.managed else []
    urls = managed or connector.urls()
    environment: list[Manifest] = [{"name": "REDIS_URL", "value": " ".join(urls)}]
    if password is not None:
        environment.append({"name": "REDIS_PASSWORD", "valueFrom": secret_ref(password)})
    if connector.ca_secret is not None:
        environment.append({"name": "REDIS_CA_FILE", "value": names.CA_FILE})
    if not connector.managed:
        # Pipelines of the same name in other namespaces may use the same Redis.
        environment.append({"name": NAMESPACE_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}})
    token = SecretKey(name=names.token_secret(pipeline.name), key=names.TOKEN_KEY)
    environment.append({"name": TOKEN_VARIABLE, "valueFrom": secret_ref(token)})
    environment.append({"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}})
    defaults = {"LOG_FORMAT": "json", **tracing_environment(pipeline.spec)}
    for variable in user:
        defaults.pop(variable.name, None)
    environment += [{"name": name, "value": value} for name, value in defaults.items()]
    return [*environment, *_BASE_ENVIRONMENT, *map(_variable, user)]


def fetch_environment(user: Sequence[EnvVar]) -> list[Manifest]:
    """Returns the environment of a download besides that of its source."""
    return [*_BASE_ENVIRONMENT, *map(_variable, user)]


def _variable(variable: EnvVar) -> Manifest:
    if variable.secret is not None:
        return {"name": variable.name, "valueFrom": secret_ref(variable.secret)}
    if (source := variable.config_map) is not None:
        return {"name": variable.name, "valueFrom": {"configMapKeyRef": {"name": source.name, "key": source.key}}}
    return {"name": variable.name, "value": variable.value}


def port(name: str, port: int) -> Manifest:
    """Returns a container's TCP port."""
    return {"name": name, "containerPort": port, "protocol": "TCP"}


def _probes(stage: Stage, part: PodFields, files: Sequence[str]) -> Manifest:
    """Returns the probes of a stage's container, whose processes have these start configurations.

    It has started once all processes are ready, and is ready when the stage of the pod is: in a pod with two processes,
    neither lives without the other.
    """
    seconds = part.startup_seconds if isinstance(part, StageSpec) else GATEWAY_STARTUP_SECONDS
    wait = ["python", "-m", "syrinx_stages.runtime.startup_probe", stage.value, str(seconds), *files]
    # A gateway waits for talkers and codecs, which may need nodes, images and checkpoints first.
    limit = seconds + _STARTUP_MARGIN if isinstance(part, StageSpec) else _GATEWAY_WAIT_SECONDS

    def get(path: str) -> Manifest:
        return {"httpGet": {"path": path, "port": names.OWN.admin_name, "scheme": "HTTP"}}

    return {
        "startupProbe": waiting_probe(wait, limit),
        "readinessProbe": probe(get("/readyz"), period=5, failures=2),
        "livenessProbe": probe(get("/healthz"), period=10, failures=6),
    }


def probe(action: Manifest, *, period: int, failures: int) -> Manifest:
    """Returns a probe; `period` is in seconds."""
    return {**action, "periodSeconds": period, "timeoutSeconds": 5, "failureThreshold": failures}


def waiting_probe(command: Sequence[str], seconds: int) -> Manifest:
    """Returns a startup probe: one command that waits, because each probe that fails is a Warning event.

    If it fails, or still runs after `seconds`, the container restarts.
    """
    action = {"exec": {"command": list(command)}}
    return {**action, "periodSeconds": 1, "timeoutSeconds": seconds, "failureThreshold": 1}


def spread_over_nodes(pipeline: str, component: Component) -> list[Manifest]:
    """Returns the constraint that spreads a component's pods over nodes, as far as there is room."""
    nodes = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    return [{**nodes, "labelSelector": {"matchLabels": names.selector(pipeline, component)}}]


def relabeled(template: Manifest, pipeline: str, component: str, label: str) -> Manifest:
    """Returns a copy of a component's pod template with another value of the component label."""
    own = deepcopy(template)
    own["metadata"]["labels"] |= names.labels(pipeline, label)
    for constraint in own["spec"].get("topologySpreadConstraints", ()):
        if constraint.get("labelSelector", {}).get("matchLabels") == names.selector(pipeline, component):
            constraint["labelSelector"] = {"matchLabels": names.selector(pipeline, label)}
    return own


def _placement(pipeline: str, stage: Stage, part: PodFields) -> Manifest:
    selector = {"matchLabels": names.selector(pipeline, stage)}
    spread = [{"labelSelector": selector, **constraint} for constraint in part.topology_spread_constraints]
    return {
        "topologySpreadConstraints": spread or spread_over_nodes(pipeline, stage),
        **omit_empty(
            nodeSelector=dict(part.node_selector),
            tolerations=tolerations(part.tolerations),
            affinity=part.affinity,
            priorityClassName=part.priority_class_name,
            runtimeClassName=part.runtime_class_name,
        ),
    }


def tolerations(wanted: Sequence[Toleration]) -> list[Manifest]:
    """Returns the tolerations of a pod."""
    return [{"operator": each.operator, **non_defaults(each)} for each in wanted]


def volumes(pipeline: ResolvedPipeline, stage: Stage, extra: Sequence[ExtraVolume]) -> list[Mounted]:
    """Returns all volumes of a stage's pod; its containers mount them read-only except /tmp and extra volumes."""
    spec = pipeline.spec
    processes = places(pipeline, stage)
    start = [
        {
            "path": place.start_file.rpartition("/")[2],
            "fieldRef": {"fieldPath": f"metadata.annotations['{place.annotation}']"},
        }
        for place in processes.values()
    ]
    result = [mounted("syrinx-start", {"downwardAPI": {"items": start}}, names.START_DIRECTORY)]
    for each, place in processes.items():
        settings = {"configMap": {"name": names.workload(pipeline.name, each)}}
        result.append(mounted(place.settings_volume, settings, place.settings_directory))
    result.append(TMP)
    if (source := models.volume_source(pipeline.name, spec)) is not None:
        result.append(mounted(MODELS, source, names.MODELS_DIRECTORY))
    if (ca := spec.connector.ca_secret) is not None:
        result.append(mounted("syrinx-redis-ca", _secret_file(ca, names.CA_FILE), names.REDIS_DIRECTORY))
    if stage is Stage.GATEWAY:
        result += _access_volumes(spec.gateway)
    return result + extra_mounts(extra)


def _access_volumes(gateway: GatewaySpec) -> list[Mounted]:
    """Returns the volumes of API keys and certificate. Kubernetes updates them when their Secrets change."""
    result = []
    if gateway.api_keys is not None and (keys := gateway.api_keys.secret) is not None:
        result.append(mounted("syrinx-api-keys", _secret_file(keys, names.API_KEYS_FILE), names.API_KEYS_DIRECTORY))
    if gateway.tls is not None:
        result.append(mounted("syrinx-tls", {"secret": {"secretName": gateway.tls.secret}}, names.TLS_DIRECTORY))
    return result


def _secret_file(secret: SecretKey, path: str) -> Manifest:
    """Returns a volume with one value of a Secret as a file."""
    return {"secret": {"secretName": secret.name, "items": [{"key": secret.key, "path": path.rpartition("/")[2]}]}}


def claims(owner: Owner, purpose: str, storage: Storage | None) -> list[Manifest]:
    """Returns the PersistentVolumeClaim NAME-PURPOSE, if there is one."""
    if storage is None:
        return []
    spec = {
        "accessModes": [storage.access_mode],
        "resources": {"requests": {"storage": storage.size}},
        **omit_empty(storageClassName=storage.storage_class_name),
    }
    return [manifest(owner, "v1", "PersistentVolumeClaim", purpose, spec=spec)]


def extra_mounts(extra: Sequence[ExtraVolume]) -> list[Mounted]:
    """Returns the additional volumes of a stage."""
    return [
        mounted(each.name, _source(each), each.mount_path, read_only=each.read_only, sub_path=each.sub_path)
        for each in extra
    ]


def _source(volume: ExtraVolume) -> Manifest:
    if volume.claim is not None:
        return {"persistentVolumeClaim": {"claimName": volume.claim, **omit_empty(readOnly=volume.read_only or None)}}
    if volume.secret is not None:
        return {"secret": {"secretName": volume.secret}}
    if volume.config_map is not None:
        return {"configMap": {"name": volume.config_map}}
    limits = volume.empty_dir
    return {"emptyDir": omit_empty(medium=limits.medium, sizeLimit=limits.size_limit) if limits else {}}
