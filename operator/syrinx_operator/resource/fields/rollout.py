"""Fields of the roll-out of a new version."""

from typing import Annotated

from msgspec import Meta

from syrinx_operator.resource.fields.pods import Object


class CanaryStep(Object, frozen=True, kw_only=True):
    """A share of the requests, and how long it lasts."""

    weight: Annotated[int, Meta(ge=1, le=90)]
    """Percentage of the speech requests that the canary serves. The rest is what it is compared with."""
    pause_seconds: Annotated[int, Meta(ge=0, le=86_400)] = 300
    """Seconds before the next step. Only time with requests counts."""


class CanarySpec(Object, frozen=True, kw_only=True):
    """A test of a new version on a share of the requests, before it replaces the running one."""

    steps: Annotated[tuple[CanaryStep, ...], Meta(min_length=1, max_length=16)] = (
        CanaryStep(weight=10),
        CanaryStep(weight=50),
    )
    """Steps, in this order; after the last one the version is promoted. Default: 10 % for 5 minutes, then 50 % for 5
    minutes."""
    min_requests: Annotated[int, Meta(ge=5, le=100_000)] = 20
    """Number of requests that the canary must have served in a step before the next one."""


class RolloutSpec(Object, frozen=True, kw_only=True):
    """How a new version replaces the running one."""

    canary: CanarySpec | None = None
    """Test each change that restarts the stages on a share of the requests. A version that fails or delays more of them
    is rolled back. Default: none."""
