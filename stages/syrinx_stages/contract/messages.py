"""The messages that stages exchange, encoded as msgpack by msgspec."""

from enum import StrEnum

import msgspec


class TaskType(StrEnum):
    """The task of a checkpoint; the values are those of the public API."""

    CUSTOM_VOICE = "CustomVoice"
    VOICE_DESIGN = "VoiceDesign"
    BASE = "Base"


class EndReason(StrEnum):
    """Why a stream ended."""

    STOP = "stop"
    """The talker sampled its end-of-sequence code."""
    LENGTH = "length"
    """`max_frames` was reached."""
    INCOMPLETE = "incomplete"
    """No attempt at a segment of the text was complete: see `End.incomplete`."""
    CANCELLED = "cancelled"
    """The client disconnected, or its gateway died."""
    REFUSED = "refused"
    """No talker claimed the request in time, or it had to make room for another client."""
    ERROR = "error"
    """The request cannot be served; see `End.message`."""


_COMPLETE = frozenset((EndReason.STOP, EndReason.LENGTH, EndReason.INCOMPLETE))


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling parameters. The defaults are the official `generation_config` of Qwen3-TTS."""

    temperature: float = 0.9
    """For code 0; 0 means greedy."""
    top_k: int = 50
    """Number of most likely codes to sample from; 0 disables the limit."""
    top_p: float = 1.0
    repetition_penalty: float = 1.05
    """Divides (multiplies, if negative) the logits of code-0 values that were already sampled."""
    min_frames: int = 2
    """No end of sequence is sampled before this many frames."""
    residual_temperature: float = 0.9
    """For codes 1 to 15; 0 means greedy."""
    residual_top_k: int = 50
    residual_top_p: float = 1.0


class Segment(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a request's text that is spoken at once: where it is in the text and in the streams."""

    number: int
    """0 is the first one."""
    start: int
    end: int
    """Its characters in `SpeechRequest.text`: the one after this one begins at `end`. Of text that streams in, those of
    the respelled text; the end and the pause of its first segment are 0, because it is named before they are known."""
    pause: float = 0.0
    """Seconds of silence between this segment and the next one."""
    is_whole: bool = False
    """The entry of codes that names it has all of its frames."""
    frames: int = 0
    """Frames of the stream before it."""
    checksum: int = 0
    """Of these frames: see `frames.checksum`."""
    retries: int = 0
    """Attempts that were dropped, at the segments before it and, if it is whole, at itself."""
    incomplete: tuple[tuple[int, int], ...] = ()
    """Of these segments, the characters of those without a complete attempt."""


class SpeechRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request for one utterance, validated by the gateway."""

    id: str
    accepted_at: float
    """Unix time in seconds, by the gateway's clock."""
    text: str
    task_type: TaskType
    voice: str | None = None
    """A speaker of the checkpoint. CustomVoice only."""
    language: str = "auto"
    """`auto`, or a key of the checkpoint's `codec_language_id` in lower case."""
    instructions: str | None = None
    has_reference: bool = False
    """Reference audio (mono float32 samples at 24 kHz, little-endian) is stored under its own key. Base only."""
    reference_prepared: bool = False
    """What is stored there is a `PreparedVoice` instead."""
    returns_voice: bool = False
    """The talker publishes the prepared voice, for the gateway to keep."""
    reference_text: str | None = None
    x_vector_only: bool = False
    non_streaming_text: bool = True
    """True: all text is in the prompt. False: one text token per frame."""
    streams_text: bool = False
    """`text` is only the beginning: the rest arrives in the request's text stream while it is spoken."""
    languages: tuple[str, ...] = ()
    """Languages that the text may be in, for the talker to normalize it. Empty: it is not normalized."""
    lexicon: dict[str, str] = {}
    """Respellings of words, for the talker to apply to a text that streams in. In others the gateway has done so."""
    max_frames: int = 2048
    """Limit of each segment."""
    total_frames: int | None = None
    """The client's limit of all segments together."""
    sampling: Sampling = Sampling()
    seed: int = 0
    client: str = ""
    """Identifies the client for its share of the queue: a hash, see `gateway.client`."""
    is_divided: bool = True
    """The text is spoken in segments. False: as it is, which only that of designed voices is."""
    resumes: Segment | None = None
    """The segment to begin with: the ones before were spoken, and Redis has lost the request since."""
    checks: bool = True
    """Segments are checked and retried. False: only `max_frames` ends the speech of a model that does not."""
    live: bool = True
    """The client plays the audio while it is generated: `lead_limit_seconds` applies."""
    traceparent: str = ""
    """The gateway's span in the format of W3C Trace Context; empty if the request is not traced."""
    tracestate: str = ""
    """What other vendors add to its trace."""

    @property
    def encodes_reference(self) -> bool:
        """Whether a talker has to encode reference audio before it can prefill the request."""
        return self.has_reference and not self.reference_prepared


class PreparedVoice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reference voice as a talker needs it: valid for one checkpoint."""

    embedding: bytes
    """The speaker encoder's x-vector: `[hidden_size] float32`, little-endian."""
    codes: bytes = b""
    """The codes of the reference audio: `[frames, 16] int16`, little-endian; empty for the x-vector alone."""


class StreamCreated(msgspec.Struct, frozen=True, tag="open"):
    """The first entry of every stream."""


class Reference(msgspec.Struct, frozen=True, tag="ref", omit_defaults=True):
    """The reference voice. The codec decodes its codes as context and does not output them."""

    codes: bytes = b""
    embedding: bytes = b""
    """As in `PreparedVoice`. Set only if the request asks for it."""


class Codes(msgspec.Struct, frozen=True, tag="codes", omit_defaults=True):
    """Code frames: `[frames, 16] int16`, little-endian."""

    codes: bytes
    talker: str = ""
    """The talker replica. Set only in the first entry that an owner writes."""
    segment: Segment | None = None
    """The segment that begins with this entry. An entry has frames of one segment only."""
    checksum: int = 0
    """Of all frames of the stream up to the last one of this entry: see `frames.checksum`."""
    waits_for_text: bool = False
    """The request's text so far allows no further frame."""


class Audio(msgspec.Struct, frozen=True, tag="audio", omit_defaults=True):
    """16-bit little-endian mono PCM of whole frames."""

    pcm: bytes
    talker: str = ""
    codec: str = ""
    """The replicas that generated it. Set only in the first entry that an owner writes."""
    checksums: bytes = b""
    """Of all codes before the first frame, and of those up to each frame: see `frames.pack_checksums`."""
    segment: Segment | None = None
    """The segment that begins with this entry, which has frames of no other."""


class PlaybackProgress(msgspec.Struct, frozen=True, tag="played"):
    """All frames up to this entry's position have been delivered to the client."""


class Text(msgspec.Struct, frozen=True, tag="text"):
    """The next piece of a request's text, up to the characters that this entry's position counts."""

    text: str


class TextEnd(msgspec.Struct, frozen=True, tag="text_end"):
    """The last entry of a text stream."""


class End(msgspec.Struct, frozen=True, tag="end", omit_defaults=True):
    """The last entry of a codes or audio stream."""

    reason: EndReason
    message: str = ""
    """For `error`: the message for the client."""
    param: str = ""
    """For `error`: the request field that caused it, if any."""
    retry_after: float = 0.0
    """For `error`: the same request may succeed after this many seconds; 0 if it would fail again."""
    checksum: int = 0
    """Of all frames of the codes, if the stream is complete: see `frames.checksum`."""
    retries: int = 0
    incomplete: tuple[tuple[int, int], ...] = ()
    """As in `Segment`, of all segments."""

    @property
    def is_complete(self) -> bool:
        """Whether the stream has all its frames."""
        return self.reason in _COMPLETE


Entry = StreamCreated | Reference | Codes | Audio | PlaybackProgress | Text | TextEnd | End
"""Any entry of a request's streams."""

encode = msgspec.msgpack.Encoder().encode
"""Encodes a request, an entry or a prepared voice."""
decode_voice = msgspec.msgpack.Decoder(PreparedVoice).decode
"""Decodes a prepared voice. Raises like `decode_request`."""
decode_request = msgspec.msgpack.Decoder(SpeechRequest).decode
"""Decodes a request. Raises `msgspec.DecodeError` (which includes `ValidationError`) for invalid data."""
_entry_decoder: msgspec.msgpack.Decoder[Entry] = msgspec.msgpack.Decoder(Entry)
decode_entry = _entry_decoder.decode
"""Decodes a stream entry. Raises like `decode_request`."""
