"""Which series of a Prometheus are a pipeline's."""

import re
from typing import Final

from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.objects.state import STAGES, Owner
from syrinx_stages.contract.stages import Stage

_GENERATED: Final = "[b-df-hj-np-tv-z0-9]+(-[b-df-hj-np-tv-z0-9]+)?"
"""How the name of a Deployment's pod ends: with a hash and a suffix; Kubernetes truncates long names at the hash.

Both have no vowels, so `canary` and names of stages, which pods of a canary or of another pipeline have there, do not
match.
"""


def selector(owner: Owner, *, with_canary: bool = False) -> str:
    """Returns label matchers for a pipeline's stages by pod and namespace, labels of all common scrape configs."""
    patterns = list(pod_patterns(owner).values())
    if with_canary:
        patterns += (f"{re.escape(names.canary_key(owner.name, stage).name)}-{_GENERATED}" for stage in STAGES)
    namespace, pods = (
        # Escaped for a PromQL string literal.
        text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        for text in (owner.namespace, "|".join(patterns))
    )
    return f'namespace="{namespace}",pod=~"{pods}"'


def pod_patterns(owner: Owner) -> dict[Stage, str]:
    """Returns regular expressions for the names of each stage's pods."""
    suffixes = dict.fromkeys(STAGES, "[0-9]+") | {Stage.GATEWAY: _GENERATED}
    return {stage: f"{re.escape(names.workload(owner.name, stage))}-{suffixes[stage]}" for stage in STAGES}
