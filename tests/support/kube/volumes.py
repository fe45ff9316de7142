"""A pod's volumes as directories, and the translation of paths, names and addresses to this machine."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.kube.store import Object

Find = Callable[[str, str], Object | None]
"""Returns an object in the pod's namespace, by kind and name."""


class NotMounted(Exception):
    """An object that a volume or variable references does not exist yet."""


class Translation:
    """Translates text from the container's view to this machine's."""

    def __init__(self, address: str, service: Callable[[str], str | None]) -> None:
        """`service` returns the address of a Service's host name; None for other names."""
        self.address = address
        self._service = service
        self._paths: dict[str, str] = {}

    def mount(self, path: str, directory: Path) -> None:
        self._paths[path.rstrip("/")] = str(directory)

    def text(self, text: str) -> str:
        """Replaces paths below mount points with directories, and Service names with addresses."""
        if self._paths:
            mounts = "|".join(re.escape(path) for path in sorted(self._paths, key=len, reverse=True))
            text = re.sub(rf"(?<![\w./-])({mounts})(?![\w.-])", lambda match: self._paths[match[1]], text)
        return re.sub(r"(\w+://(?:[^/@\s\"]*@)?)([a-z0-9][-a-z0-9.]*)", self._host, text)

    def file(self, text: str) -> str:
        """Translates a command; a server that would listen on all addresses listens on the pod's."""
        text = self.text(text)
        with contextlib.suppress(ValueError):
            content = json.loads(text)
            if isinstance(content, dict) and content.get("host") == "":
                return json.dumps({**content, "host": self.address})
        return text

    def _host(self, match: re.Match[str]) -> str:
        return match[1] + (self._service(match[2]) or match[2])


def field(pod: Object, path: str) -> str:
    """Returns the value of a `fieldRef`."""
    if match := re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path):
        return str(pod["metadata"].get(match[1], {}).get(match[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        content = pod["metadata"].get(path.partition(".")[2], {})
        return "\n".join(f"{key}={json.dumps(value)}" for key, value in sorted(content.items()))
    value: Any = pod
    for step in path.split("."):
        value = value.get(step, "") if isinstance(value, dict) else ""
    return str(value)


def value_of(find: Find, pod: Object, source: Object) -> str | None:
    """Returns the value of a `valueFrom`; None if it is optional and absent. Raises NotMounted."""
    if "fieldRef" in source:
        return field(pod, source["fieldRef"]["fieldPath"])
    kind = "secret" if "secretKeyRef" in source else "configmap"
    reference = source["secretKeyRef" if kind == "secret" else "configMapKeyRef"]
    content = (find(kind, reference["name"]) or {}).get("data", {})
    if reference["key"] not in content:
        if reference.get("optional"):
            return None
        raise NotMounted(f'couldn\'t find key {reference["key"]} in {kind} "{reference["name"]}"')
    value = content[reference["key"]]
    return base64.b64decode(value).decode() if kind == "secret" else str(value)


class Volume:
    """A volume as a directory."""

    def __init__(self, source: Object, directory: Path, claims: Path) -> None:
        self._source = source
        self._version: str | None = None
        claim = source.get("persistentVolumeClaim", {}).get("claimName")
        self.directory = claims / claim if claim else directory / source["name"]
        self.directory.mkdir(parents=True, exist_ok=True)

    def refresh(self, find: Find, pod: Object, translation: Translation) -> None:
        """Updates the files atomically. Raises NotMounted."""
        files = self._files(find, pod)
        version = json.dumps({name: content.decode("latin-1") for name, content in (files or {}).items()})
        if files is None or version == self._version:
            return
        fresh = self.directory / f"..{len(list(self.directory.iterdir()))}"
        for name, content in files.items():
            path = fresh / name
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                path.write_text(translation.file(content.decode()))
            except UnicodeDecodeError:
                path.write_bytes(content)
        _switch(self.directory / "..data", fresh.name)
        for name in {Path(name).parts[0] for name in files}:
            if not (self.directory / name).is_symlink():
                _switch(self.directory / name, f"..data/{name}")
        self._version = version

    def _files(self, find: Find, pod: Object) -> dict[str, bytes] | None:
        source = self._source
        if "downwardAPI" in source:
            items = source["downwardAPI"]["items"]
            return {item["path"]: field(pod, item["fieldRef"]["fieldPath"]).encode() for item in items}
        if "configMap" in source:
            return _selected(find("configmap", source["configMap"]["name"]), source["configMap"], str.encode)
        if "secret" in source:
            return _selected(find("secret", source["secret"]["secretName"]), source["secret"], base64.b64decode)
        if "persistentVolumeClaim" in source:
            name = source["persistentVolumeClaim"]["claimName"]
            if find("persistentvolumeclaim", name) is None:
                raise NotMounted(f'persistentvolumeclaim "{name}" not found')
        elif "emptyDir" not in source:
            raise NotMounted(f"this kubelet has no such volume: {source}")
        return None


def _selected(obj: Object | None, source: Object, decode: Callable[[str], bytes]) -> dict[str, bytes]:
    if obj is None:
        if source.get("optional"):
            return {}
        raise NotMounted(f'"{source.get("name", source.get("secretName"))}" not found')
    content = {key: decode(value) for key, value in obj.get("data", {}).items()}
    if "items" in source:
        return {item["path"]: content[item["key"]] for item in source["items"]}
    return content


def _switch(link: Path, target: str) -> None:
    """Replaces a symbolic link atomically."""
    temporary = link.with_name(f"{link.name}.new")
    temporary.unlink(missing_ok=True)
    os.symlink(target, temporary)
    temporary.replace(link)
