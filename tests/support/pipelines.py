"""Hypothesis strategies for TTSPipeline resources: mostly valid, with occasional mistakes."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

Schema = dict[str, Any]

_NAMES = st.sampled_from(["a", "b", "a-b", "web.example", "x" * 50])
_KEYS = st.sampled_from(
    ["cpu", "memory", "team", "example.org/a", "nvidia.com/gpu", "syrinx.dev/x", "app.kubernetes.io/x"]
)
_WRONG_KEYS = st.sampled_from(["", "a b", "-a", "a/b/c", "x" * 64])
_WRONG = st.sampled_from(["", "?", "A B", True, False, -1, 0, 70_000, 0.5, [], ["a"], {}, {"a": "b"}, "x" * 5000])
_TEXTS: dict[str, list[str]] = {
    "path": ["/models/x", "models/x", "//", "a/../b", "..", "/a..b"],
    "url": [
        *("redis://h", "rediss://u@h:6380/1", "redis://[::1]:6379", "redis://u:p@h", "redis://:p@h", "redis://h:0"),
        *("redis://h:65535", "redis://h:65536", "rediss://h?a=b", "http://h", "https://h:9090/x", "redis://", "h:1"),
    ],
    "mountPath": ["/data", "/data/more", "/models", "/tmp/x", "/tmpx", "/a/./b", "/a/../b", "/a..b", "/etc/syrinx"],
    "subPath": ["a", "a/b", "../a", "a/..", "/a", "a..b"],
    "cidr": ["10.0.0.0/8", "::/0", "2001:db8::/129", "10.0.0/8", "10.0.0.256/8", "0.0.0.0/0"],
    "image": ["redis:7", "a b", "registry.example.org/a@sha256:0"],
    "endpoint": ["https://hub.example.org", "hub.example.org"],
    "id": ["a/b", "a", "a/b/c", "Qwen/Qwen3-TTS"],
    "revision": ["main", "refs/pr/1", "-x", "v1.0"],
    "size": ["1Gi", "0Gi", "1.5Gi", "10", "Gi"],
    "sizeLimit": ["1Gi", "0"],
}
_ENV_NAMES = ["A", "B", "REDIS_URL", "POD_NAME", "1A", "HOME_2"]
_REFERENCE_HOSTS = ["a.example", "a.example:80", "a b", "u@h"]


def resources(schema: Schema) -> st.SearchStrategy[dict[str, Any]]:
    """Returns a strategy for whole resources of a CRD's schema."""
    return st.fixed_dictionaries(
        {
            "apiVersion": st.just("syrinx.dev/v1beta1"),
            "kind": st.just("TTSPipeline"),
            "metadata": st.fixed_dictionaries(
                {"name": st.sampled_from(["demo"] * 9 + ["a-1", "x" * 40, "x" * 41, "9a", "a-", "a.b", "Demo"])}
            ),
        },
        optional={"spec": _objects(schema["properties"]["spec"])},
    )


def _values(name: str, schema: Schema) -> st.SearchStrategy[Any]:
    """Returns values for a schema; one in 30 has an arbitrary type."""
    return st.integers(0, 29).flatmap(lambda chance: _WRONG if chance == 0 else _right(name, schema))


def _right(name: str, schema: Schema) -> st.SearchStrategy[Any]:
    if "enum" in schema:
        return st.sampled_from([*schema["enum"], *schema["enum"], "Other"])
    if schema.get("x-kubernetes-int-or-string"):
        return st.sampled_from([0, 1, 4, "500m", "1Gi", "2", "1.5", "x", "-1"])
    if name == "podTemplate":
        return st.sampled_from([{}, {"spec": {"schedulerName": "a"}}])
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return st.dictionaries(
            st.sampled_from(["nodeAffinity", "b"]), st.booleans() | st.text("ab", max_size=3), max_size=2
        )
    match schema["type"]:
        case "boolean":
            return st.booleans()
        case "integer":
            return _integers(schema)
        case "number":
            return _integers(schema).map(float) | st.sampled_from([0.0, 0.5, 1.0])
        case "array":
            items = st.lists(_values(name, schema["items"]), min_size=schema.get("minItems", 0), max_size=3)
            return items | st.lists(_values(name, schema["items"]), max_size=1)
        case "object":
            return _maps(schema) if "additionalProperties" in schema else _objects(schema)
    return _strings(name, schema)


def _integers(schema: Schema) -> st.SearchStrategy[int]:
    least, most = math.ceil(schema.get("minimum", 0)), math.floor(schema.get("maximum", 100))
    small = st.integers(least, min(most, least + 40))
    return st.integers(0, 9).flatmap(
        lambda chance: st.sampled_from([least - 1, most, most + 1]) if chance == 0 else small
    )


def _strings(name: str, schema: Schema) -> st.SearchStrategy[str]:
    if name in _TEXTS:
        return st.sampled_from(_TEXTS[name])
    if name == "referenceHosts":
        return st.sampled_from(_REFERENCE_HOSTS)
    if schema.get("maxLength") == 128 and "pattern" in schema and "A-Za-z_" in schema["pattern"]:
        return st.sampled_from(_ENV_NAMES)
    return _NAMES


def _maps(schema: Schema) -> st.SearchStrategy[dict[str, Any]]:
    keys = st.integers(0, 19).flatmap(lambda chance: _WRONG_KEYS if chance == 0 else _KEYS)
    return st.dictionaries(keys, _values("", schema["additionalProperties"]), max_size=2)


def _objects(schema: Schema) -> st.SearchStrategy[dict[str, Any]]:
    """Objects nearly always have their required fields and up to four others; one in 60 has an unknown field."""
    fields, required = schema["properties"], schema.get("required", [])

    @st.composite
    def draw_object(draw: st.DrawFn) -> dict[str, Any]:
        others = sorted(set(fields) - set(required))
        chosen = draw(st.lists(st.sampled_from(others), unique=True, max_size=4)) if others else []
        given = [name for name in required if draw(st.integers(0, 39)) != 0] + chosen
        drawn = {name: draw(_values(name, fields[name])) for name in given}
        return drawn | ({"unheardOf": 1} if draw(st.integers(0, 59)) == 0 else {})

    return draw_object()
