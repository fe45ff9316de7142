"""Parameters of the cluster tests: each field is the environment variable SYRINX_TEST_FIELD."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from uuid import uuid4

from syrinx_operator import __version__


def _text(name: str, default: str = "") -> str:
    return os.environ.get(f"SYRINX_TEST_{name}", default)


@dataclass(frozen=True)
class Parameters:
    """Properties of the cluster."""

    namespace: str = field(default_factory=lambda: _text("NAMESPACE") or f"syrinx-test-{uuid4().hex[:8]}")
    """Created if it does not exist, and deleted at the end. A test deletes NAMESPACE-other, which is watched too."""
    operator_image: str = _text("OPERATOR_IMAGE")
    """Empty: the operator runs from this checkout, as a process, with the rights of the chart's ServiceAccount."""
    stages_image: str = _text("STAGES_IMAGE", f"syrinx/stages:{__version__}")
    stages_image_next: str = _text("STAGES_IMAGE_NEXT")
    """Another image of the stages with the same voice, for tests of upgrades; empty skips them."""
    redis_image: str = _text("REDIS_IMAGE", "redis:7.2-alpine")
    pull_policy: str = _text("PULL_POLICY", "IfNotPresent")
    pull_secret: str = _text("PULL_SECRET")
    """Name of an existing Secret with registry credentials in the namespace."""
    storage_class: str = _text("STORAGE_CLASS")
    """Storage class; empty uses the cluster's default, `none` skips tests of volumes."""
    model_image: str = _text("MODEL_IMAGE")
    """An image with the files of the bundled voice in its root, for image volumes; empty skips their test."""
    node: str = _text("NODE")
    """Name of a node that the tests may cordon and drain of their pods; empty skips these tests."""
    stop_node: str = _text("STOP_NODE")
    """Shell command that stops the kubelet of `node`; empty skips the test of a lost node."""
    start_node: str = _text("START_NODE")
    """Shell command that starts it again."""
    delete_crd: bool = bool(_text("DELETE_CRD"))
    """Delete the CRD, and with it all pipelines of the cluster, in a test."""
    ready_seconds: float = float(_text("READY_SECONDS", "600"))
    """Timeout for a pipeline's start, including image pulls and model loading."""
    pcm_tolerance: int = int(_text("PCM_TOLERANCE", "0"))
    """Maximum sample difference (of 32768) after a takeover; above 0 for nodes with different CPUs or GPUs."""
    record: str = _text("RECORD")
    """A JSON file that gets the outcome of each run of one revision; empty: none."""
    keep: bool = bool(_text("KEEP"))
    """Keep namespace and pipelines for inspection."""
