"""The inputs of a stage process: its configuration file, its settings file and its environment."""

import logging
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from syrinx_stages.connector.redis.streams import RedisConnector
from syrinx_stages.contract.keys import Keys, cell_of
from syrinx_stages.contract.settings import NAMESPACE_VARIABLE, StageConfig, StageSettings
from syrinx_stages.runtime.errors import SettingsError, StartError
from syrinx_stages.runtime.settings import SettingsUpdate, merge

log = logging.getLogger(__name__)


def load_start_config(stage: str, path: str, environment: Mapping[str, str]) -> StageConfig:
    """Loads a configuration file and resolves replica name and settings. Raises `StartError`."""
    try:
        config = msgspec.json.decode(Path(path).read_bytes(), type=StageConfig)
    except OSError as error:
        raise StartError(f"cannot read {path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise StartError(f"{path}: {error}") from None
    replica = config.replica or environment.get("POD_NAME", "")
    if not replica:
        raise StartError(f"{path}: replica: give this process a name, or set POD_NAME")
    return _with_settings_file(stage, msgspec.structs.replace(config, replica=replica))


def _with_settings_file(stage: str, config: StageConfig) -> StageConfig:
    path = config.settings_file
    if path is None:
        return config
    try:
        update = msgspec.json.decode(Path(path).read_bytes(), type=SettingsUpdate)
        own: StageSettings = getattr(config, stage)
        settings = merge(own, _without_unknown(path, own, update), config.max_resident)
    except FileNotFoundError:
        return config
    except OSError as error:
        raise StartError(f"cannot read {path}: {error.strerror}") from None
    except (msgspec.DecodeError, SettingsError) as error:
        raise StartError(f"{path}: {error}") from None
    if update.seconds is not None:
        raise StartError(f"{path}: seconds: the settings at the start have no time limit")
    generation = config.settings_generation if update.generation is None else update.generation
    return msgspec.structs.replace(config, settings_generation=generation, **{stage: settings})


def _without_unknown(path: str, own: StageSettings, update: SettingsUpdate) -> SettingsUpdate:
    """Returns the update without settings of newer versions, which the operator gives to all replicas of a stage."""
    known = {name: value for name, value in update.settings.items() if name in own.__struct_fields__}
    if unknown := sorted(update.settings.keys() - known.keys()):
        log.warning("%s: this version ignores the unknown settings %s", path, ", ".join(unknown))
    return msgspec.structs.replace(update, settings=known)


def connect_redis(
    config: StageConfig, environment: Mapping[str, str], on_error: Callable[[], object] = lambda: None
) -> RedisConnector:
    """Returns the connector to the cell of a talker or codec, as `connect_cells`. Raises `StartError`."""
    try:
        cell = cell_of(config.replica, config.cells)
    except ValueError as error:
        raise StartError(f"replica: {error}") from None
    return _connect(config, environment, cell, on_error)


def connect_cells(
    config: StageConfig, environment: Mapping[str, str], on_error: Callable[[], object] = lambda: None
) -> list[RedisConnector]:
    """Returns a connector to each cell for `REDIS_URL`, `REDIS_PASSWORD` and `REDIS_CA_FILE`. Raises `StartError`.

    `NAMESPACE_VARIABLE` distinguishes pipelines of the same name that share a Redis.
    """
    return [_connect(config, environment, cell, on_error) for cell in range(config.cells)]


def _connect(
    config: StageConfig, environment: Mapping[str, str], cell: int, on_error: Callable[[], object]
) -> RedisConnector:
    try:
        namespace = environment.get(NAMESPACE_VARIABLE, "")
        keys = Keys(config.pipeline, config.generation, cell, config.cells, namespace)
    except ValueError as error:
        raise StartError(str(error)) from None
    urls, password = environment.get("REDIS_URL", "").split(), environment.get("REDIS_PASSWORD", "")
    if not urls:
        raise StartError("REDIS_URL is not set; it looks like redis://host:6379/0 (or rediss:// with TLS)")
    if len(urls) not in (1, config.cells):
        raise StartError(f"REDIS_URL holds {len(urls)} addresses for {config.cells} cells: needs one, or one for each")
    url = urls[cell % len(urls)]
    ca_file = environment.get("REDIS_CA_FILE") or None
    if ca_file is not None and not url.startswith("rediss"):
        raise StartError("REDIS_CA_FILE is set, but REDIS_URL is not a rediss:// address: nothing would be checked")
    try:
        options: dict[str, Any] = {"password": password, "ca_file": ca_file, "name": config.replica}
        return RedisConnector(url, keys, **options, on_error=on_error)
    except ssl.SSLError:
        raise StartError(f"REDIS_CA_FILE: {ca_file} holds no certificate in PEM format") from None
    except OSError as error:
        raise StartError(f"REDIS_CA_FILE: cannot read {ca_file}: {error.strerror}") from None
    except ValueError as error:
        raise StartError(f"REDIS_URL: {error}") from None
