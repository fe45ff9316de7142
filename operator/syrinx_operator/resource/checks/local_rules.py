"""The rules that hold for `syrinx up` only: it has no Secrets, and downloads and mounts nothing."""

from collections.abc import Iterator

from msgspec import Struct, structs

from syrinx_operator.resource.checks.conditions import Violation
from syrinx_operator.resource.fields.gateway import GatewaySpec
from syrinx_operator.resource.fields.model import ModelSpec
from syrinx_operator.resource.fields.pods import default_of, is_kubernetes_only
from syrinx_operator.resource.resolve import ResolvedPipeline


def local_violations(pipeline: ResolvedPipeline) -> list[Violation]:
    """Returns why `syrinx up` cannot run a pipeline."""
    found = [*_remote_sources(pipeline.spec.model), *_secrets(pipeline.spec.gateway)]
    vllm = pipeline.spec.talker.vllm
    if vllm is not None and vllm.tensor_parallel_size > 1 and pipeline.talker.device == "cpu":
        path = ("spec", "talker", "vllm", "tensorParallelSize")
        found.append(Violation(path, "needs GPUs: set spec.talker.device: cuda"))
    return found


def ignored_locally(part: Struct, path: str = "spec") -> Iterator[str]:
    """Yields the names of fields of a spec that are set but apply only on Kubernetes."""
    for field in structs.fields(part):
        value, name = getattr(part, field.name), f"{path}.{field.encode_name}"
        if is_kubernetes_only(field):
            if value != default_of(field):
                yield name
        elif isinstance(value, Struct):
            yield from ignored_locally(value, name)


def _remote_sources(model: ModelSpec) -> Iterator[Violation]:
    """Yields the fields of a checkpoint that is available only on Kubernetes."""
    advice = {}
    if (hub := model.hugging_face) is not None:
        download = f"hf download {hub.id} --revision {hub.revision} --local-dir DIRECTORY"
        advice["huggingFace"] = f"download the checkpoint ({download}) and set spec.model.path to its directory"
    if (s3 := model.s3) is not None:
        advice["s3"] = f"download {s3.uri} and set spec.model.path to its directory"
    if (image := model.image) is not None:
        advice["image"] = f"copy the checkpoint out of {image.reference} and set spec.model.path to its directory"
    if model.volume is not None:
        advice["volume"] = "remove it and set spec.model.path to a local directory"
    if model.claim is not None:
        advice["claim"] = "remove it and set spec.model.path to a local directory"
    for field, what_to_do in advice.items():
        yield Violation(("spec", "model", field), f"supported only on Kubernetes: {what_to_do}")


def _secrets(gateway: GatewaySpec) -> Iterator[Violation]:
    """Yields the Secrets without which the API would be open, or unencrypted."""
    if (keys := gateway.api_keys) is not None and keys.file is None:
        message = "supported only on Kubernetes: set spec.gateway.apiKeys.file"
        yield Violation(("spec", "gateway", "apiKeys", "secret"), message)
    if (tls := gateway.tls) is not None and (tls.certificate_file is None or tls.key_file is None):
        files = "spec.gateway.tls.certificateFile and spec.gateway.tls.keyFile"
        yield Violation(("spec", "gateway", "tls", "secret"), f"supported only on Kubernetes: set {files}")
