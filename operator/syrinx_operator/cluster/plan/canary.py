"""The workloads of a canary, and the release that the running version keeps meanwhile. Pure.

A canary is a small pipeline of its own with one gateway, talker and codec or more: another model generation on the same
Redis, in Deployments of its own. The workloads of the running version are not touched until it is promoted. Its pods
serve their share until the version that they carry is complete.
"""

import math
from collections.abc import Mapping
from copy import deepcopy

from msgspec import Struct, structs

from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.objects.state import STAGES, Manifest, ObjectKey, Observed, Owner, Replica
from syrinx_operator.cluster.plan.objects import manifest, non_defaults, short_hash
from syrinx_operator.cluster.plan.records import Candidate, FrozenTemplate, Release, RenderContext, with_template_label
from syrinx_operator.cluster.plan.workload import pods
from syrinx_operator.resource.fields.rollout import CanarySpec
from syrinx_operator.resource.resolve import ResolvedPipeline, resolve
from syrinx_operator.resource.spec import PipelineSpec
from syrinx_operator.resource.state.canary_status import CanaryStatus
from syrinx_stages.contract.settings import TRACK_VARIABLE, CanaryRoute
from syrinx_stages.contract.stages import WORKERS, Stage

MAX_URLS = 64
"""Maximum number of gateways of a canary that requests are forwarded to."""


class CanaryPlan(Struct, frozen=True, kw_only=True):
    """A version that does not replace the running one, because it is tested or has failed."""

    spec: CanarySpec
    stable: Release
    """The release of the running version, with the record of this one."""
    candidate: Candidate
    image: str
    replicas: Mapping[Stage, int]
    """Number of pods of the canary by workload; empty once it has failed, and while it waits for a roll-out."""
    awaited: Mapping[Stage, int]
    """Number of those that must be ready for its share of the requests."""
    waits: bool
    """Whether its pods start once the running version is rolled out."""
    weight: int
    """Percentage of the requests that it serves."""

    @property
    def is_running(self) -> bool:
        """Whether the canary has pods."""
        return bool(self.replicas)


def canary_plan(
    pipeline: ResolvedPipeline,
    before: Release | None,
    desired: Release,
    context: RenderContext,
    counts: Mapping[Stage, int],
    status: CanaryStatus | None,
    observed: Observed,
) -> CanaryPlan | None:
    """Returns the plan of a canary of the `desired` release; None if that is simply rolled out.

    `before` is the recorded release, `counts` has the desired replicas of the running version by workload. There is no
    canary without a running version, after its promotion, and for changes that both versions would have to share.
    """
    spec = pipeline.spec.rollout.canary
    if spec is None or before is None or not _is_comparable(before, desired):
        return None
    recorded = {stage: before.templates[stage] for stage in counts}
    running = {stage: _with_secrets(template, context) for stage, template in recorded.items()}
    templates = {stage: desired.templates[stage] for stage in counts}
    # The recorded ones are desired while a download is awaited.
    if _hashes(templates) in (_hashes(running), _hashes(recorded)):
        return None
    target = target_of(templates)
    known = status if status is not None and status.target == target else None
    if known is not None and known.phase == "Promoted":
        return None
    candidate = before.candidate
    if candidate is None or candidate.target != target:
        own = structs.replace(context, generation=target)
        rendered = {stage: canary_template(pipeline, stage, own) for stage in counts}
        candidate = Candidate(target=target, templates=templates, pods=rendered)
    stable = structs.replace(
        before,
        redis_image=desired.redis_image,
        shared=desired.shared,
        templates={**desired.templates, **running},
        redis=desired.redis,
        candidate=candidate,
    )
    last = len(spec.steps) - 1
    step = min(known.step if known else 0, last)
    weight = spec.steps[step].weight
    has_failed = known is not None and known.phase == "RolledBack"
    hashes = {template.hash for template in candidate.pods.values()}
    has_pods = any(pod.template in hashes and not pod.terminating for pod in observed.canary)
    # Its pods, which may need the room of a roll-out, would wait for it without requests.
    waits = is_promoting(stable, status) or not (has_pods or _is_rolled_out(stable, counts, observed))
    return CanaryPlan(
        spec=spec,
        stable=stable,
        candidate=candidate,
        image=context.image,
        # The promotion replaces half of the running version's replicas while the canary serves for them.
        replicas={} if has_failed or waits else _share(counts, max(weight, 50) if step == last else weight),
        awaited=_share(counts, weight),
        waits=waits,
        weight=0 if has_failed or known is None else known.weight,
    )


def _share(counts: Mapping[Stage, int], weight: int) -> dict[Stage, int]:
    """Returns as many pods as a percentage of the requests needs, so that a canary is not slower for lack of them."""
    return {stage: max(1, math.ceil(count * weight / 100)) for stage, count in counts.items()}


def _is_rolled_out(release: Release, counts: Mapping[Stage, int], observed: Observed) -> bool:
    """Returns whether the running version has all pods, of the templates of its release, and no other ones."""
    for stage, count in counts.items():
        pods = [pod for pod in observed.replicas_of(stage) if not pod.stuck]
        if len(pods) != count or any(pod.template != release.templates[stage].hash for pod in pods):
            return False
    return True


def is_promoting(release: Release, status: CanaryStatus | None) -> bool:
    """Returns whether the pods of a canary serve on because `release`, which it was promoted to, is not complete.

    The status of a promoted canary is kept until then.
    """
    if status is None or status.phase != "Promoted" or not status.weight:
        return False
    return status.target == target_of(release.templates)


def target_of(templates: Mapping[Stage, FrozenTemplate]) -> str:
    """Returns the hash that names a version in the status of its canary."""
    return short_hash(_hashes(templates))


def shared_inputs(spec: PipelineSpec) -> str:
    """Returns a hash of what the pods of both versions would share, and a canary therefore cannot change."""
    return short_hash(
        {
            "connector": non_defaults(spec.connector),
            "topology": spec.topology,
            "port": spec.gateway.port,
            "tls": non_defaults(spec.gateway.tls) if spec.gateway.tls else None,
            "cache": non_defaults(spec.model.cache) if spec.model.cache else None,
        }
    )


def _is_comparable(before: Release, desired: Release) -> bool:
    """Returns whether both versions can run side by side: with the same shared objects and, as all have, a token."""
    if before.shared != desired.shared or before.templates.keys() != desired.templates.keys():
        return False
    annotations = (each.template["metadata"].get("annotations", {}) for each in before.templates.values())
    return before.redis.keys() == desired.redis.keys() and all(names.TOKEN_ANNOTATION in each for each in annotations)


def _hashes(templates: Mapping[Stage, FrozenTemplate]) -> dict[str, str]:
    return {component.value: template.hash for component, template in templates.items()}


def _with_secrets(running: FrozenTemplate, context: RenderContext) -> FrozenTemplate:
    """Returns the template of the running version with the present token and password, for which its pods restart."""
    template = deepcopy(running.template)
    annotations = template["metadata"]["annotations"]
    # A version with a Redis of its own has no password of the managed one.
    annotations |= {name: uid for name, uid in pods.secret_annotations(context).items() if name in annotations}
    return FrozenTemplate(running.inputs, with_template_label(template))


def canary_template(pipeline: ResolvedPipeline, stage: Stage, context: RenderContext) -> FrozenTemplate:
    """Returns the pod template of a stage of the canary: that of the stage, with labels of its own.

    It uses the first cell's Redis: it is small, and the names of its pods have no number, from which a cell follows.
    """
    connector = structs.replace(pipeline.spec.connector, cells=1)
    pipeline = resolve(structs.replace(pipeline.resource, spec=structs.replace(pipeline.spec, connector=connector)))
    stable = pods.stage_template(pipeline, stage, context)
    template = pods.relabeled(stable, pipeline.name, stage, names.canary(stage))
    template["spec"]["containers"][0]["env"].append({"name": TRACK_VARIABLE, "value": "canary"})
    return FrozenTemplate("", with_template_label(template))


def canary_workloads(
    owner: Owner, pipeline: ResolvedPipeline, canary: CanaryPlan, observed: Observed
) -> list[Manifest]:
    """Returns the Deployments of a canary; none while pods of the canary before end, which serve their last streams."""
    templates = canary.candidate.pods
    current = {template.hash for template in templates.values()}
    if any(pod.template not in current for pod in observed.canary if not pod.stuck):
        return []
    found = []
    for stage, replicas in canary.replicas.items():
        body = {
            "replicas": replicas,
            "revisionHistoryLimit": 0,
            "progressDeadlineSeconds": pipeline.progress_deadline,
            "selector": {"matchLabels": names.selector(owner.name, names.canary(stage))},
            "strategy": {"type": "Recreate"},
            "template": templates[stage].template,
        }
        workload = manifest(owner, "apps/v1", "Deployment", names.canary(stage), spec=body)
        workload["metadata"]["name"] = names.canary_key(owner.name, stage).name
        found.append(workload)
    return found


def kept_workloads(owner: Owner, observed: Observed, *, promoting: bool) -> frozenset[ObjectKey]:
    """Returns the workloads that serve the requests of a canary, also of one that ends.

    Its gateways stay while one of the running version forwards to them, its talkers and codecs while it has a gateway.
    """
    kept: tuple[Stage, ...] = ()
    if promoting or any(forwarded_share(gateway) for gateway in observed.live(Stage.GATEWAY)):
        kept = STAGES
    elif any(pod.component is Stage.GATEWAY and not pod.stuck for pod in observed.canary):
        kept = WORKERS
    return frozenset(names.canary_key(owner.name, stage) for stage in kept)


def canary_route(spec: PipelineSpec, share: float, observed: Observed) -> CanaryRoute | None:
    """Returns where the gateways of the running version forward the canary's share; None while it has no share."""
    scheme, port = "https" if spec.gateway.tls else "http", spec.gateway.port
    gateways = [pod for pod in observed.canary if pod.component is Stage.GATEWAY and pod.ready and not pod.terminating]
    addresses = [pod.address for pod in gateways if pod.address]
    hosts = [f"[{address}]" if ":" in address else address for address in addresses[:MAX_URLS]]
    if not share or not hosts:
        return None
    return CanaryRoute(weight=share, urls=tuple(f"{scheme}://{host}:{port}" for host in hosts))


def forwarded_share(gateway: Replica) -> float:
    """Returns the share of the requests that a gateway forwards; 0 if it is unknown."""
    route = gateway.reported.settings.get("canary") if gateway.reported is not None else None
    return float(route.get("weight", 0.0)) if isinstance(route, dict) else 0.0
