"""The description of the public API at `/openapi.json`, from the types that requests are checked against."""

import functools
from collections.abc import Iterable
from typing import Any

import msgspec

from syrinx_stages.contract.api import NARI_STREAM_PATH, SPEECH_STREAM_PATH
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.gateway.audio.encoders import AudioFormat, AudioOptions
from syrinx_stages.gateway.fields.peers import FOREIGN, names, outcome
from syrinx_stages.gateway.http.batch import MAX_ITEMS, NOT_SHARED, ItemResult
from syrinx_stages.gateway.http.body import FORM, JSON
from syrinx_stages.gateway.http.delivery import EVENT_STREAM
from syrinx_stages.gateway.speech.texts import MAX_TEXT
from syrinx_stages.gateway.voices.reference import FORMATS

_DESCRIPTION = (
    "OpenAI's speech API for Qwen3-TTS. OpenAPI describes no WebSockets: "
    f"{SPEECH_STREAM_PATH} takes text in pieces and speaks it while it arrives, and so does {NARI_STREAM_PATH}."
)
_ERRORS = {
    "400": "The request is invalid: a value, a name, a combination, a body that is not JSON.",
    "401": "The request has no valid API key.",
    "403": "A web page of this origin, or this host, is not allowed.",
    "404": "Another model or voice, or an unknown path.",
    "408": "The body did not arrive in time.",
    "409": "The client has a voice with this name.",
    "413": "The body or the reference audio is too large.",
    "415": "The body has another media type, or is encoded.",
    "422": "The request is valid, but this checkpoint cannot serve it.",
    "429": "A limit of the API key is exceeded: repeat the request after Retry-After seconds.",
    "431": "The request line and the headers are too large.",
    "500": "A stage failed.",
    "501": "The transfer encoding is not supported.",
    "503": "Temporarily unavailable: repeat the request after Retry-After seconds.",
}
_KEY_ERRORS = ("401", "429")
_POST_ERRORS = tuple(each for each in _ERRORS if each not in (*_KEY_ERRORS, "409"))
_RETRY_AFTER = {"description": "Seconds after which the same request may succeed.", "schema": {"type": "integer"}}
HEADERS = {
    "X-Request-Id": "Identifies the request: the one that the client sent, or a new one.",
    "X-Seed": "The seed of the audio.",
    "X-Sample-Rate": "Samples per second of the audio.",
    "X-Finish-Reason": "stop, length or incomplete; in responses to stream: false.",
    "X-Retries": "The number of attempts at segments that were dropped; in responses to stream: false.",
    "X-Incomplete": "The characters of segments without a complete attempt, such as 38-66, 80-95; if there are any.",
    "X-Audio-Seconds": "Duration of the audio; in responses to stream: false.",
    "Warning": "Fields of the request that have no effect.",
}
_FIELDS = {
    "input": "The text to speak.",
    "model": "The served model or an alias of it: see GET /v1/models.",
    "voice": "A voice, an alias of one or an uploaded voice, as a name or an object: see GET /v1/audio/voices.",
    "instructions": "How to speak, if the checkpoint can follow it; for VoiceDesign the description of the voice.",
    "response_format": "The format of the audio; pcm, ulaw and alaw have no header.",
    "sample_rate": "Samples per second of the audio.",
    "speed": "How fast the audio plays; the pitch stays the same.",
    "stream": "false: the whole file, with its length. true: a stream, of events if that is the server's default.",
    "stream_format": "audio: the file's bytes as they are generated. sse: events with base64 data.",
    "task_type": "The task of the checkpoint.",
    "language": "One of the languages of GET /v1/audio/voices, or its code: en, en-US.",
    "ref_audio": "For Base: the voice to clone, as base64, a data: URI or the URL of an allowed host.",
    "ref_text": "For Base: the transcript of ref_audio.",
    "x_vector_only_mode": "For Base: clone from the speaker embedding alone, without ref_text.",
    "speaker_embedding": "For Base: the voice to clone, as the numbers of its speaker embedding.",
    "non_streaming_mode": "false: the model reads one text token per frame instead of all text at once.",
    "seed": "The same seed gives the same audio; random unless given, or -1.",
    "normalize": "Speak numbers, dates, money and the like as the words that the text is rewritten to.",
    "lexicon": "Respellings by word.",
    "runaway_guard": "Check each segment of the text, and retry it if it failed; the default is the server's.",
    "max_new_tokens": "Maximum number of frames of the whole answer, of 80 ms each.",
    "temperature": "Of a frame's first code; 0 is greedy.",
    "top_k": "Of a frame's first code; 0 or -1 is no limit.",
    "top_p": "Of a frame's first code.",
    "repetition_penalty": "Of a frame's first code.",
    "subtalker_temperature": "Of a frame's other codes; 0 is greedy.",
    "subtalker_top_k": "Of a frame's other codes; 0 or -1 is no limit.",
    "subtalker_top_p": "Of a frame's other codes.",
}
"""Descriptions of the request's fields."""
_OWN = "voice, an alias or one of the client's own by its name or id."
_SAMPLE = f"A file with 1 to 30 s of speech, up to 16 MB: {FORMATS}. Required without speaker_embedding."
_VOICE_FIELDS = {
    "name": "The name of the voice; unique among the client's, ignoring case.",
    "consent": "Who agreed to the use of the voice, for example the id of a recording; kept with the voice.",
    "ref_text": "What audio_sample says. Without it the voice is its speaker embedding alone.",
    "speaker_embedding": "The voice as a JSON array of numbers, instead of audio_sample.",
    "speaker_description": "Kept with the voice.",
    "type": "audio_sample, if given.",
}
"""Descriptions of the fields of an upload."""


@functools.cache
def document(needs_key: bool, text_limit: int) -> dict[str, Any]:
    """Returns the OpenAPI 3.1 document of a gateway that accepts so many characters, and may require API keys."""
    described = _document(text_limit)
    return _with_keys(described) if needs_key else described


def _with_keys(document: dict[str, Any]) -> dict[str, Any]:
    """Adds the security scheme and its errors to a document."""
    for path, operations in document["paths"].items():
        for method, operation in operations.items() if path.startswith("/v1/") else ():
            operation["security"] = [{"key": []}]
            operation["responses"] |= _errors(*_KEY_ERRORS[: 2 if method == "post" else 1])
    scheme = {"type": "http", "scheme": "bearer", "description": "An API key."}
    document["components"]["securitySchemes"] = {"key": scheme}
    return document


def _document(text_limit: int) -> dict[str, Any]:
    types = (FAMILY.request_fields, ItemResult)
    [body, result], schemas = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    speech = schemas[FAMILY.request_fields.__name__]
    typed = {name: {**speech["properties"][name], "description": text} for name, text in _FIELDS.items()}
    typed = {name: _spelled(each) for name, each in typed.items()} | _foreign()
    checked = _choices(text_limit)
    speech["properties"] = {name: {**each, **checked.get(name, {})} for name, each in typed.items()}
    speech |= _NEEDS_TEXT
    del speech["required"]
    schemas |= {"Error": _ERROR, **_batch_schemas(typed, result)}
    model, models = _object("The model.", "id", "object"), _object("The models.", "object", "data")
    own = _object("The voice.", "id", "object", "name")
    missing = ("404", "503")
    deleted = _object("The voice was deleted.", "id", "object", "deleted")
    delete = _operation("Deletes an uploaded voice.", deleted, "400", *missing, parameter="voice")
    html = {"text/html": {"schema": {"type": "string"}}}
    links = _object("The playground, or links to all of this where it is off.", "name", "docs")
    return {
        "openapi": "3.1.0",
        "info": {"title": "Syrinx", "version": "1", "description": _DESCRIPTION},
        "paths": {
            "/v1/audio/speech": {"post": _speech(body)},
            "/v1/audio/speech/batch": {"post": _batch()},
            "/v1/audio/voices": {
                **_get(
                    "Lists the voices, their aliases and the client's own.", _object("The voices.", "voices", "names")
                ),
                "post": _upload(),
            },
            "/v1/audio/voices/{voice}": {
                **_get(f"Describes a {_OWN}", own, *missing, parameter="voice"),
                "delete": delete,
            },
            "/v1/audio/models": _get("Lists the model and its aliases.", models),
            "/v1/models": _get("Lists the model and its aliases.", models),
            "/v1/models/{model}": _get("Describes a model.", model, "404", parameter="model"),
            "/health": _get("Reports whether the gateway is ready.", _object("Ready.", "status"), "503"),
            "/docs": _get("A page that describes this API.", {"description": "The page.", "content": html}),
            "/": _get("A page on which to try speech, if it is on.", links | {"content": links["content"] | html}),
            "/openapi.json": _get("This document.", _object("OpenAPI.", "openapi", "paths")),
        },
        "components": {"schemas": schemas},
    }


_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"enum": ["invalid_request_error", "requests", "server_error"]},
                "param": {"type": ["string", "null"], "description": "The invalid field."},
                "code": {"type": "string"},
            },
        }
    },
}


_NEEDS_TEXT = {"anyOf": [{"required": ["input"]}, {"required": ["text"]}]}


def _foreign() -> dict[str, Any]:
    """Returns the schemas of fields of other APIs, whose values are checked after decoding."""
    return {
        name: {"deprecated": True, "description": f"Of {names(each.clients)}: {outcome(each)}."}
        for name, each in FOREIGN.items()
    }


def _spelled(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema of a field with what else is accepted: values as text, and empty lists and texts. These are
    marked as deprecated, so that the page of the API leaves them out."""
    nothing: list[dict[str, Any]] = [{"type": "array", "maxItems": 0}, {"type": "string", "pattern": r"^\s*$"}]
    kinds = {each.get("type") for each in schema.get("anyOf", ())}
    also: dict[str, list[dict[str, Any]]] = {
        "boolean": [{"type": "string"}, {"enum": [0, 1]}],
        "integer": [{"type": "string"}],
        "number": [{"type": "string"}],
        "array": nothing,
        "object": nothing,
    }
    others = [each | {"deprecated": True} for kind in kinds for each in also.get(kind, ())]
    return schema | ({"anyOf": [*schema["anyOf"], *others]} if others else {})


def _choices(text_limit: int) -> dict[str, Any]:
    """Returns the schemas of fields whose values are checked after decoding."""

    def one_of(names: Iterable[str], default: str | None = None) -> dict[str, Any]:
        in_any_case = {"type": "string", "description": "One of the names in another case.", "deprecated": True}
        return {"anyOf": [{"enum": list(names)}, {"type": "null"}, in_any_case], "default": default}

    return {
        # The playground reads both limits. The second one is that of text that streams in as tokens.
        "input": {"type": "string", "minLength": 1, "maxLength": text_limit, "x-maxLengthOfTokens": MAX_TEXT},
        "response_format": one_of(AudioFormat, AudioFormat.WAV),
        "stream_format": one_of(("audio", "sse")),
        "task_type": one_of(FAMILY.task_types),
    }


def _batch_schemas(fields: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """Returns the schemas of a batch and its response. Only the types of `fields` are checked for the whole batch."""
    shared = {name: each for name, each in fields.items() if name not in NOT_SHARED}
    item = {"input": fields["input"], **shared}
    items = {
        "type": "array",
        "items": {"$ref": "#/components/schemas/BatchItem"},
        "minItems": 1,
        "maxItems": MAX_ITEMS,
        "description": "The texts, each with fields of its own.",
    }
    counts = {name: {"type": "integer"} for name in ("total", "succeeded", "failed")}
    answer = {"id": {"type": "string"}, "results": {"type": "array", "items": result}, **counts}
    closed = {"type": "object", "additionalProperties": False}
    return {
        "BatchItem": {**closed, **_NEEDS_TEXT, "properties": item},
        "Batch": {**closed, "required": ["items"], "properties": {"items": items, **shared}},
        "BatchResults": {"type": "object", "required": list(answer), "properties": answer},
    }


def _speech(body: dict[str, Any]) -> dict[str, Any]:
    audio: dict[str, Any] = {AudioOptions(each).media_type: {} for each in AudioFormat}
    headers = {name: {"description": text, "schema": {"type": "string"}} for name, text in HEADERS.items()}
    spoken = {"description": "The audio.", "headers": headers, "content": {**audio, EVENT_STREAM: {}}}
    return _post("Synthesizes speech.", "speech", {JSON: {"schema": body}}, spoken)


def _batch() -> dict[str, Any]:
    def content(name: str) -> dict[str, Any]:
        return {JSON: {"schema": {"$ref": f"#/components/schemas/{name}"}}}

    results = "The results, in the order of the items; each may be an error."
    answer = {"description": results, "content": content("BatchResults")}
    summary = "Synthesizes several texts. The other fields apply to all items that do not have their own."
    return _post(summary, "speechBatch", content("Batch"), answer)


def _upload() -> dict[str, Any]:
    texts = {name: {"type": "string", "description": text} for name, text in _VOICE_FIELDS.items()}
    file = {"type": "string", "contentMediaType": "application/octet-stream", "description": _SAMPLE}
    form = {
        "type": "object",
        "additionalProperties": False,
        "required": ["name", "consent"],
        "properties": {**texts, "audio_sample": file},
    }
    kept = _object("The voice is kept.", "id", "object", "name", "created_at", "type", "durable")
    return _post("Keeps a voice, which requests may then name.", "keepVoice", {FORM: {"schema": form}}, kept, "409")


def _post(summary: str, name: str, content: dict[str, Any], answer: dict[str, Any], *errors: str) -> dict[str, Any]:
    return {
        "summary": summary,
        "operationId": name,
        "requestBody": {"required": True, "content": content},
        "responses": {"200": answer, **_errors(*sorted((*_POST_ERRORS, *errors)))},
    }


def _get(summary: str, found: dict[str, Any], *errors: str, parameter: str | None = None) -> dict[str, Any]:
    """Returns the GET and HEAD operations of a path."""
    operation = _operation(summary, found, *errors, parameter=parameter)
    return {"get": operation, "head": {**operation, "summary": f"{summary} Without the body."}}


def _operation(summary: str, found: dict[str, Any], *errors: str, parameter: str | None) -> dict[str, Any]:
    operation: dict[str, Any] = {"summary": summary, "responses": {"200": found, **_errors("403", "431", *errors)}}
    if parameter is not None:
        operation["parameters"] = [{"name": parameter, "in": "path", "required": True, "schema": {"type": "string"}}]
    return operation


def _object(description: str, *required: str) -> dict[str, Any]:
    schema = {"type": "object", "required": list(required)}
    return {"description": description, "content": {JSON: {"schema": schema}}}


def _errors(*statuses: str) -> dict[str, Any]:
    content = {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}
    described = {status: {"description": _ERRORS[status], "content": content} for status in statuses}
    for status in described.keys() & {"429", "503"}:
        described[status]["headers"] = {"Retry-After": _RETRY_AFTER}
    return described
