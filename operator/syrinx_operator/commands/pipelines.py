"""The pipelines that commands run on this machine, and what they check before: the resource and the files it names."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path as FilePath

from syrinx_operator.local.gpus import visible_gpus
from syrinx_operator.local.machine import memory_gib, usable_cores
from syrinx_operator.local.sizing import sized_pipeline, with_gpu_replicas
from syrinx_operator.resource.checks.check import CheckResult, Finding, absolute, check, load_one, read_file
from syrinx_operator.resource.checks.documents import Path
from syrinx_operator.resource.resolve import resolve
from syrinx_operator.resource.spec import PipelineSpec, TTSPipeline
from syrinx_operator.resource.stage_config import stage_fields
from syrinx_stages.contract.api_keys import MAX_BYTES, KeysError, parse_keys
from syrinx_stages.contract.stages import Stage
from syrinx_stages.fetch.download import File
from syrinx_stages.fetch.parts import CONFIGS, WEIGHTS, select
from syrinx_stages.fetch.store import FetchError
from syrinx_stages.gateway.voices.catalog import Catalog
from syrinx_stages.model.config import CheckpointError, read_model_config, read_speech_tokenizer_config
from syrinx_stages.model.describe import describe
from syrinx_stages.runtime.errors import StartError
from syrinx_stages.runtime.http.tls import Certificate

_NAMES: Mapping[str, Path] = {"voices": ("spec", "voices"), "voiceAliases": ("spec", "gateway", "api", "voiceAliases")}
"""The fields of the resource that errors of a `Catalog` begin with."""


def load(file: str, notify: Callable[[str], None] | None) -> TTSPipeline:
    """Returns the only pipeline of a file (`-`: standard input), with absolute paths and replicas for all GPUs.

    Calls `notify` with a line about ignored fields. Raises `InvalidPipeline`.
    """

    def complete(resource: object) -> object:
        return with_gpu_replicas(resource, lambda: tuple(visible_gpus().values()))

    pipeline = load_one(file, read_file(file), notify, complete, lambda each: unusable(absolute(file, each)))
    return absolute(file, pipeline)


def check_file(file: str) -> CheckResult:
    """Checks all pipelines of a file (`-`: standard input) as `load` does. Raises `InvalidPipeline` without a file."""
    return check(file, read_file(file), inputs=lambda each: unusable(absolute(file, each)))


def default_pipeline(notify: Callable[[str], None]) -> TTSPipeline:
    """Returns a pipeline of the bundled voice that uses this machine's cores."""
    cores = usable_cores()
    pipeline = sized_pipeline(cores, memory_gib())
    talkers, codecs = pipeline.spec.talker.replicas, pipeline.spec.codec.replicas
    notify(f"bundled voice, for {cores} cores: talkers {talkers}, codecs {codecs}; a FILE sets other values")
    return pipeline


def unusable(pipeline: TTSPipeline) -> Iterator[Finding]:
    """Yields the fields of a pipeline that its stages would refuse when they start. Paths are absolute."""
    found = list(_unusable_files(pipeline.spec))
    yield from found or _unusable_names(pipeline)


def _unusable_files(spec: PipelineSpec) -> Iterator[Finding]:
    for path, file, use in _files(spec):
        try:
            use(file)
        except OSError as error:
            yield path, f"cannot read {file}: {error.strerror}"
        except KeysError as error:
            yield path, f"{file}: {error}"
        except (CheckpointError, FetchError, StartError) as error:
            yield path, str(error)


def _unusable_names(pipeline: TTSPipeline) -> Iterator[Finding]:
    """Yields the voices, or their aliases, that the checkpoint does not permit."""
    gateway = stage_fields(resolve(pipeline), Stage.GATEWAY)
    checkpoint = describe(pipeline.spec.model.path or "bundled")
    try:
        Catalog(checkpoint, gateway["model_name"], gateway["api"], gateway["shared_voices"])
    except StartError as error:
        field, _, message = str(error).partition(": ")
        yield _NAMES[field], message


def _files(spec: PipelineSpec) -> Iterator[tuple[Path, str, Callable[[str], object]]]:
    """Yields the fields that name a file or a directory, its name, and what reads it."""
    gateway = spec.gateway
    if spec.model.path is not None:
        yield ("spec", "model", "path"), spec.model.path, _read_checkpoint
    if gateway.api_keys is not None and gateway.api_keys.file is not None:
        yield ("spec", "gateway", "apiKeys", "file"), gateway.api_keys.file, _read_keys
    if (tls := gateway.tls) is not None and tls.certificate_file is not None and tls.key_file is not None:
        key = tls.key_file
        yield ("spec", "gateway", "tls"), tls.certificate_file, lambda file: Certificate(file, key)
    for index, voice in enumerate(spec.voices):
        if voice.file is not None:
            yield ("spec", "voices", index, "file"), voice.file, lambda file: FilePath(file).read_bytes()


def _read_checkpoint(directory: str) -> None:
    """Raises `CheckpointError` or `FetchError` for an invalid configuration or missing files of a checkpoint."""
    root = FilePath(directory)
    if not root.is_dir():
        raise CheckpointError(f"there is no directory {root}; name that of a checkpoint (with config.json)")
    read_model_config(root)
    read_speech_tokenizer_config(root)
    present = [each for pattern in ("*", "speech_tokenizer/*") for each in root.glob(pattern) if each.is_file()]
    files = [File(str(each.relative_to(root)), size=0, digest="") for each in present]
    select(root, files, (*CONFIGS, *(pattern for patterns in WEIGHTS.values() for pattern in patterns)))


def _read_keys(file: str) -> None:
    with open(file, "rb") as stream:
        parse_keys(stream.read(MAX_BYTES + 1))
