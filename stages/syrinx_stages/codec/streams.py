"""The rows of a codec."""

from collections import deque

from msgspec import Struct

from syrinx_stages.connector.base import Claim
from syrinx_stages.contract.messages import End, Segment
from syrinx_stages.contract.silence import LeadingSilenceTrimmer
from syrinx_stages.scheduling.codec_rows import Row


class Upcoming(Struct, frozen=True):
    """A segment whose codes arrive before all those of the one before it are decoded."""

    segment: Segment
    codes: list[bytes]
    checksums: list[int]
    """Of all frames up to each one of `codes`."""


class Stream(Row, kw_only=True):
    """A row with the state that the scheduler does not need."""

    claim: Claim
    codes: list[bytes]
    checksums: list[int]
    """Of all frames up to each one of `codes`; 0 in the reference."""
    segment: Segment | None = None
    """The segment of `codes`; None before the first one."""
    is_named: bool = False
    """An audio entry has named it."""
    upcoming: deque[Upcoming]
    newest: Segment | None = None
    """The segment of the codes received last."""
    received: int = 0
    """Frames of codes received, without those of the reference."""
    checksum: int = 0
    """Of the frames received."""
    taken_checksum: int = 0
    """Of the frames received, without `codes`."""
    restarts: int = 0
    """How often the codes in Redis were not those that were received before."""
    reference_codes: bytes = b""
    """Of the reference, which each segment continues."""
    reference: bytes = b""
    """Digest of the codes of the reference while they are being decoded, and nothing else is context."""
    published: int
    """Frames of audio published: `decoded` without the calls in flight."""
    in_flight: int = 0
    trimmer: LeadingSilenceTrimmer | None = None
    """Tracks the leading silence of the segment, which the gateway trims; None if its first audio was published
    before."""
    talker: str = ""
    """The talker replica that generated the codes."""
    provenance_sent: bool = False
    """Whether an audio entry has named the current talker and codec replicas."""
    end: End | None = None
    streams_text: bool = False
    """Its codes may pause because its text does."""
