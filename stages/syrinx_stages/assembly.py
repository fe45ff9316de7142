"""Builds the services of a stage process: connects a service to the engine of its model family and device."""

from importlib.metadata import version

import torch

from syrinx_stages.codec.engine import CodecEngine
from syrinx_stages.codec.service import CodecService
from syrinx_stages.connector.base import StageConnector
from syrinx_stages.contract.metrics import INFO
from syrinx_stages.contract.settings import StageConfig
from syrinx_stages.families import IMPLEMENTATION
from syrinx_stages.kernels.gpu import MIN_CAPABILITY, Gpu, gpu_of
from syrinx_stages.runtime.errors import StartError
from syrinx_stages.runtime.gpu_memory import refuse_out_of_memory
from syrinx_stages.runtime.settings import LiveSettings
from syrinx_stages.runtime.telemetry.metrics import Metrics
from syrinx_stages.talker.service import Loaded, TalkerService


def build_talker(config: StageConfig, connector: StageConnector, metrics: Metrics) -> tuple[TalkerService, None]:
    """Returns the talker service of a process; it has no public HTTP application."""
    live = LiveSettings(config.talker, config.settings_generation, config.max_resident)

    def load() -> Loaded:
        device = _open_device(config.device, metrics)
        with refuse_out_of_memory(device, "the talker's weights and state"):
            engine = IMPLEMENTATION.load_talker_engine(config, device, live)
        return engine, IMPLEMENTATION.describe(config.model).reading

    return TalkerService(connector, load, config.replica, config.max_resident, live, metrics, config.standby_of), None


def build_codec(config: StageConfig, connector: StageConnector, metrics: Metrics) -> tuple[CodecService, None]:
    """Returns the codec service of a process; it has no public HTTP application."""

    def load() -> CodecEngine:
        device = _open_device(config.device, metrics)
        with refuse_out_of_memory(device, "the codec's weights and state"):
            return IMPLEMENTATION.load_codec_engine(config, device)

    live = LiveSettings(config.codec, config.settings_generation, config.max_resident)
    return CodecService(connector, load, config.replica, config.max_resident, live, metrics, config.standby_of), None


def _open_device(name: str, metrics: Metrics) -> torch.device:
    """Returns the device called `name` (`cpu`, `cuda`, `cuda:1`) and exports it as `syrinx_info`.

    Raises `StartError` if the device is not available or cannot run the kernels.
    """
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise StartError(f"device {name!r} cannot be used: {str(error).splitlines()[0]}") from None
    if device.type == "cpu":
        # With several threads the result of a row would depend on its batch. Stages scale by processes instead.
        torch.set_num_threads(1)
    description = device.type
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        check_capability(name, gpu_of(device))
        description = f"cuda {name}"
    metrics[INFO].labels(version("syrinx"), description).set(1)
    return device


def check_capability(name: str, gpu: Gpu) -> None:
    """Raises `StartError` if the GPU called `name` cannot run the kernels."""
    if gpu.capability < MIN_CAPABILITY:
        have, need = (f"sm_{major}{minor}" for major, minor in (gpu.capability, MIN_CAPABILITY))
        raise StartError(
            f"{name} ({have}) cannot be used: it has no tensor cores for bfloat16. Use an Ampere GPU ({need}) or a "
            "later one, or device: cpu"
        )
