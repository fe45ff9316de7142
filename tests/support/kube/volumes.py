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

Find = Callable[[str, str], Object]
"""Returns an object in the pod's namespace, by kind and name."""


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
        """Translates a file's text; a server that would listen on all addresses listens on the pod's."""
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
    if match := re.fullmatch(r"metadata\.annotations\['([^']+)'\]", path):
        return str(pod["metadata"]["annotations"][match[1]])
    value: Any = pod
    for step in path.split("."):
        value = value[step]
    return str(value)


def value_of(find: Find, pod: Object, source: Object) -> str:
    """Returns the value of a `valueFrom`."""
    if "fieldRef" in source:
        return field(pod, source["fieldRef"]["fieldPath"])
    reference = source["secretKeyRef"]
    return base64.b64decode(find("secret", reference["name"])["data"][reference["key"]]).decode()


class Volume:
    """A volume as a directory."""

    def __init__(self, source: Object, directory: Path) -> None:
        self._source = source
        self._files: dict[str, str] = {}
        self.directory = directory / source["name"]
        self.directory.mkdir()

    def refresh(self, find: Find, pod: Object, translation: Translation) -> None:
        """Updates the files atomically."""
        files = {name: translation.file(content) for name, content in self._contents(find, pod).items()}
        if files == self._files:
            return
        fresh = self.directory / f"..{len(list(self.directory.iterdir()))}"
        fresh.mkdir()
        for name, content in files.items():
            (fresh / name).write_text(content)
        _switch(self.directory / "..data", fresh.name)
        for name in files:
            if not (self.directory / name).is_symlink():
                _switch(self.directory / name, f"..data/{name}")
        self._files = files

    def _contents(self, find: Find, pod: Object) -> dict[str, str]:
        source = self._source
        if "downwardAPI" in source:
            return {item["path"]: field(pod, item["fieldRef"]["fieldPath"]) for item in source["downwardAPI"]["items"]}
        if "configMap" in source:
            return dict(find("configmap", source["configMap"]["name"])["data"])
        if "secret" in source:
            data = find("secret", source["secret"]["secretName"])["data"]
            return {item["path"]: base64.b64decode(data[item["key"]]).decode() for item in source["secret"]["items"]}
        assert "emptyDir" in source, f"this kubelet has no such volume: {source}"
        return {}


def _switch(link: Path, target: str) -> None:
    """Replaces a symbolic link atomically."""
    temporary = link.with_name(f"{link.name}.new")
    os.symlink(target, temporary)
    temporary.replace(link)
