"""The charts render valid objects with minimal permissions, and refuse invalid values by name."""

import helm_python
import kubernetes_validate
import pytest
import yaml

from support.charts import CHARTS, MONITORING, ROOT, is_hook, objects, of_kind, one, parsed, rendered, validate
from support.rbac import PROXY_RBAC_RULES, RBAC_RULES
from syrinx_operator import __version__
from syrinx_operator.cluster.config import options
from syrinx_operator.resource.checks.check import load_one
from syrinx_operator.resource.spec import default_pipeline

OLDEST = "1.28.0"
KUBERNETES = (OLDEST, kubernetes_validate.latest_version())
DIGEST = "sha256:" + "0123456789abcdef" * 4
VALUES = {
    "defaults": {},
    "cluster-wide": {"clusterWide": True},
    "namespaces": {"watchNamespaces": ["voices", "books"]},
    "two operators": {"replicas": 2},
    "proxy": {"stageAccess": "proxy"},
    "digests": {image: {"digest": DIGEST} for image in ("image", "stagesImage", "redisImage")},
    "everything": {
        "fullnameOverride": "speaker",
        "imagePullSecrets": [{"name": "registry"}],
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        "podAnnotations": {"a.b/c": "d"}, "podLabels": {"team": "voice"}, "commonLabels": {"cost": "centre"},
        "priorityClassName": "high",
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
        "serviceAccount": {"annotations": {"a.b/role": "c"}},
        "dashboards": {"annotations": {"grafana_folder": "Syrinx"}},
        "prometheus": {
            "url": "https://prometheus:9090",
            "tokenSecret": {"name": "prometheus"},
            "caSecret": {"name": "prometheus-ca"},
        },
    },
    "nothing optional": {
        "serviceAccount": {"create": False, "name": "mine"},
        "rbac": {"create": False},
        **{part: {"enabled": False} for part in ("networkPolicy", "dashboards", "tests", "serviceMonitor")},
        **{part: {"enabled": False} for part in ("podMonitor", "prometheusRule")},
    },
}  # fmt: skip
(DEFINITION,) = parsed((ROOT / "crds" / "ttspipelines.syrinx.dev.yaml").read_text())
EVERY = pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)


def rules_of(manifests):
    return {
        (group, resource, verb)
        for role in manifests
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def table(rights):
    return {(right.group, right.resource, verb) for right in rights for verb in right.verbs}


def operator(values, **options):
    return one(objects("syrinx", values, **options), "Deployment")["spec"]["template"]["spec"]


def command(values):
    return operator(values)["containers"][0]["command"]


def environment(values):
    return {each["name"]: each.get("value") for each in operator(values)["containers"][0]["env"]}


# --- the charts as packages


@pytest.mark.parametrize("chart", ["syrinx", "syrinx-crds"])
def test_charts_pass_helm_lint_and_have_the_version_of_the_project(chart):
    report = helm_python.lint(CHARTS / chart, strict=True)
    assert report["errors"] == []
    assert [found["error"] for found in report["messages"]] == ["icon is recommended"]
    metadata = yaml.safe_load((CHARTS / chart / "Chart.yaml").read_text())
    assert metadata["version"] == metadata["appVersion"] == __version__
    assert metadata["kubeVersion"] == f">={OLDEST}-0"


def test_artifact_hub_annotations_are_correct():
    declared = yaml.safe_load((CHARTS / "syrinx" / "Chart.yaml").read_text())["annotations"]
    images = {image["name"]: image["image"] for image in yaml.safe_load(declared["artifacthub.io/images"])}
    known = environment({})
    assert images == {"redis": known["SYRINX_REDIS_IMAGE"]}, "the other images are not published"
    (crd,) = yaml.safe_load(declared["artifacthub.io/crds"])
    assert crd["name"] == DEFINITION["metadata"]["name"]
    spec = DEFINITION["spec"]
    assert (crd["kind"], crd["version"]) == (spec["names"]["kind"], spec["versions"][0]["name"])
    for example in yaml.safe_load(declared["artifacthub.io/crdsExamples"]):
        load_one("example", yaml.safe_dump(example).encode())


def test_the_schema_has_all_values_and_accepts_the_defaults():
    with helm_python.Chart.load(CHARTS / "syrinx") as chart:
        chart.validate_schema(chart.values)
        assert set(chart.schema["properties"]) == {*chart.values, "global"}


# --- objects


def test_without_a_fixed_user_the_cluster_chooses_it():
    context = operator({"fixedUser": False})["securityContext"]
    assert context["runAsNonRoot"] is True and not context.keys() & {"runAsUser", "runAsGroup", "fsGroup"}


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize(
    ("chart", "values"), [*(("syrinx", values) for values in VALUES.values()), ("syrinx-crds", {})]
)
def test_every_object_is_valid(chart, values, version):
    for manifest in objects(chart, values, serves=MONITORING):
        if not manifest["apiVersion"].startswith("monitoring.coreos.com/"):
            validate(manifest, version)


@EVERY
def test_every_object_is_labelled_and_has_a_unique_name(values):
    """And the operator has the label that the stages select."""
    made = objects("syrinx", values, serves=MONITORING)
    keys = [(m["kind"], m["metadata"].get("namespace"), m["metadata"]["name"]) for m in made]
    assert len(keys) == len(set(keys))
    assert {m["metadata"]["labels"]["app.kubernetes.io/instance"] for m in made} == {"syrinx"}
    spec = one(made, "Deployment")["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() | {("app.kubernetes.io/name", "syrinx-operator")} <= labels.items()


def test_two_installations_have_different_cluster_scoped_names():
    def cluster_scoped(**options):
        made = objects("syrinx", {"clusterWide": True}, **options)
        return {m["metadata"]["name"] for m in made if "namespace" not in m["metadata"]}

    assert cluster_scoped(namespace="one")
    assert not cluster_scoped(namespace="one") & cluster_scoped(namespace="two")


@pytest.mark.parametrize(
    ("release", "name"),
    [
        ("syrinx", "syrinx-operator"),
        ("syrinx-operator", "syrinx-operator"),
        ("speech", "speech-syrinx-operator"),
        ("s" * 53, "s" * 47 + "-syrinx-operator"),
    ],
)
def test_names_derive_from_the_release_and_are_short_enough(release, name):
    assert one(objects("syrinx", name=release), "Deployment")["metadata"]["name"] == name
    for manifest in objects("syrinx", name=release):
        assert len(manifest["metadata"]["name"]) <= (253 if manifest["kind"] == "ConfigMap" else 63 + len("-test"))


def test_namespaces_match_arguments_and_role_bindings():
    def declared(values):
        return [word for word in command(values) if "namespace" in word]

    def bound(values):
        made = of_kind(objects("syrinx", values), "RoleBinding", "ClusterRoleBinding")
        return [m["metadata"].get("namespace") for m in made if not is_hook(m)]

    assert (declared({}), bound({})) == (["--namespace=speech"], ["speech"])
    two = VALUES["namespaces"]
    assert declared(two) == ["--namespace=voices", "--namespace=books"]
    assert bound(two) == ["speech", "voices", "books"], "its own namespace has its Lease"
    own = next(m for m in of_kind(objects("syrinx", two), "Role") if m["metadata"]["namespace"] == "speech")
    assert rules_of([own]) == {("coordination.k8s.io", "leases", verb) for verb in ("get", "create", "update")}
    assert (declared({"clusterWide": True}), bound({"clusterWide": True})) == (["--all-namespaces"], [None])


def test_an_upgrade_ends_the_old_operators_first():
    for replicas in (1, 2):
        made = objects("syrinx", {"replicas": replicas})
        assert one(made, "Deployment")["spec"]["strategy"]["type"] == "Recreate"
    assert not of_kind(objects("syrinx"), "PodDisruptionBudget")
    assert one(made, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_a_digest_takes_precedence_over_the_tag():
    assert operator(VALUES["digests"])["containers"][0]["image"] == f"registry.example/operator@{DIGEST}"
    assert environment(VALUES["digests"])["SYRINX_STAGES_IMAGE"] == f"registry.example/stages@{DIGEST}"
    assert environment(VALUES["digests"])["SYRINX_REDIS_IMAGE"] == f"redis@{DIGEST}"


@EVERY
def test_the_operator_accepts_its_environment(values):
    declared = {name: value for name, value in environment(values).items() if value is not None}
    taken = options({**declared, "KUBERNETES_SERVICE_HOST": "10.0.0.1", "SYRINX_OPERATOR_NAMESPACE": "speech"})
    assert taken.pipelines.stages_image == declared["SYRINX_STAGES_IMAGE"]
    assert taken.pipelines.redis_image == declared["SYRINX_REDIS_IMAGE"]
    assert taken.access == values.get("stageAccess", "direct")
    container = operator(values)["containers"][0]
    assert [port["containerPort"] for port in container["ports"]] == [taken.port]


def test_values_reach_the_operator():
    spec, values = operator(VALUES["everything"]), VALUES["everything"]
    pod = (
        "imagePullSecrets",
        "priorityClassName",
        "nodeSelector",
        "tolerations",
        "topologySpreadConstraints",
        "affinity",
    )
    assert {field: spec[field] for field in pod} == {field: values[field] for field in pod}
    assert environment(values)["HTTPS_PROXY"] == "http://proxy:3128"
    taken = environment({"resyncSeconds": 7.5, "leaseSeconds": 30, "logFormat": "text"})
    assert (taken["SYRINX_RESYNC_SECONDS"], taken["SYRINX_LEASE_SECONDS"], taken["LOG_FORMAT"]) == ("7.5", "30", "text")
    assert environment({})["LOG_FORMAT"] == "json"


def test_the_prometheus_token_is_mounted_at_the_configured_path():
    declared, container = environment(VALUES["everything"]), operator(VALUES["everything"])["containers"][0]
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert declared["SYRINX_PROMETHEUS_URL"] == "https://prometheus:9090"
    for file, key in (("SYRINX_PROMETHEUS_TOKEN_FILE", "token"), ("SYRINX_PROMETHEUS_CA_FILE", "ca.crt")):
        directory, _, name = declared[file].rpartition("/")
        assert directory in mounted and name == key
    assert not any("PROMETHEUS" in name for name in environment({}))


def test_the_operator_s_pods_are_annotated_for_prometheus():
    def annotations(values):
        metadata = one(objects("syrinx", values), "Deployment")["spec"]["template"]["metadata"]
        return metadata.get("annotations", {})

    scraped = {"prometheus.io/scrape": "true", "prometheus.io/port": "8080", "prometheus.io/path": "/metrics"}
    assert annotations({}) == scraped
    assert annotations({"podAnnotations": {"a.b/c": "d"}}) == scraped | {"a.b/c": "d"}
    assert annotations({"scrapeAnnotations": False}) == {}


# --- permissions


@pytest.mark.parametrize("clusterwide", [False, True])
def test_the_operator_has_exactly_the_permissions_that_it_uses(clusterwide):
    def granted(values):
        made = of_kind(objects("syrinx", {**values, "clusterWide": clusterwide}), "Role", "ClusterRole")
        return rules_of(role for role in made if not is_hook(role))

    assert granted({}) == table(RBAC_RULES)
    assert granted({"stageAccess": "proxy"}) == table((*RBAC_RULES, *PROXY_RBAC_RULES))


def test_permissions_on_pipelines_are_aggregated():
    roles = {role["metadata"]["name"]: role for role in of_kind(objects("syrinx-crds"), "ClusterRole")}
    prefix = "rbac.authorization.k8s.io/aggregate-to-"
    for name, aggregated in (("view", {"view", "edit", "admin"}), ("edit", {"edit", "admin"})):
        labels = roles[f"syrinx-ttspipelines-{name}"]["metadata"]["labels"]
        assert {label.removeprefix(prefix) for label in labels if prefix in label} == aggregated
    assert {verb for _, _, verb in rules_of([roles["syrinx-ttspipelines-view"]])} == {"get", "list", "watch"}
    assert not of_kind(objects("syrinx-crds", {"aggregateToDefaultRoles": False}), "ClusterRole")


# --- invalid values


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"watchNamespace": ["a"]}, "watchNamespace"),
        ({"watchNamespaces": ["Not_A_Name"]}, "/watchNamespaces/0"),
        ({"watchNamespaces": ["a", "a"]}, "/watchNamespaces"),
        ({"watchNamespaces": ["a"], "clusterWide": True}, "/watchNamespaces"),
        ({"image": {"digest": "sha256:beef"}}, "/image/digest"),
        ({"image": {"tag": "a b"}}, "/image/tag"),
        ({"image": {"registry": "r"}}, "registry"),
        ({"image": {"repository": ""}}, "image.repository is required: build the image"),
        ({"stagesImage": {"repository": ""}}, "stagesImage.repository is required: build the image"),
        ({"redisImage": {"tag": ""}}, "/redisImage/tag"),
        ({"replicas": -1}, "/replicas"),
        ({"replicas": "two"}, "/replicas"),
        ({"stageAccess": "tunnel"}, "/stageAccess"),
        ({"resyncSeconds": 0}, "/resyncSeconds"),
        ({"extraEnv": [{"value": "x"}]}, "/extraEnv/0"),
        ({"podLabels": {"app.kubernetes.io/name": "mine"}}, "/podLabels"),
        ({"serviceAccount": {"create": False}}, "/serviceAccount/name"),
        ({"prometheus": {"tokenSecret": {"name": "token"}}}, "/prometheus/url"),
        ({"prometheusRule": {"objectives": {"ttfaMs": 400}}}, "/prometheusRule/objectives/ttfaMs"),
        ({"serviceMonitor": {"interval": "often"}}, "/serviceMonitor/interval"),
        ({"tests": {"enabled": "yes"}}, "/tests/enabled"),
    ],
)
def test_bad_values_are_refused_by_name(values, field):
    with pytest.raises(helm_python.HelmError) as refused:
        rendered("syrinx", values)
    assert field in str(refused.value)


# --- the resource


def test_the_definition_is_kept_by_default():
    def policy(values):
        made = one(objects("syrinx-crds", values), "CustomResourceDefinition")
        return made["metadata"]["annotations"].get("helm.sh/resource-policy")

    assert policy({}) == "keep"
    assert policy({"keep": False}) is None


def test_the_notes_explain_the_first_steps():
    notes = rendered("syrinx")["NOTES.txt"]
    assert "syrinx-crds" in notes
    assert "kubectl apply --server-side -n speech" in notes
    served = rendered("syrinx", {"clusterWide": True}, serves=("syrinx.dev/v1beta1",))["NOTES.txt"]
    assert "syrinx-crds" not in served
    assert "all namespaces" in served
    first = notes[notes.index("  apiVersion") : notes.index("  EOF")]
    assert load_one("notes", first.encode()) == default_pipeline("demo")


def test_the_test_pod_may_only_create_pipelines():
    hooks = [manifest for manifest in objects("syrinx") if is_hook(manifest)]
    assert rules_of(of_kind(hooks, "Role")) == {("syrinx.dev", "ttspipelines", "create")}
    pod = one(hooks, "Pod")
    # The stages' NetworkPolicies must not take it for the operator.
    assert pod["metadata"]["labels"]["app.kubernetes.io/name"] != "syrinx-operator"
    assert not any(is_hook(manifest) for manifest in objects("syrinx", {"tests": {"enabled": False}}))
