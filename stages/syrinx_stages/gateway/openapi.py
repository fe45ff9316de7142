"""The description of the public API at `/openapi.json`, from the types that requests are checked against."""

import functools
from typing import Any

import msgspec

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.gateway.encoders import AudioFormat, AudioOptions
from syrinx_stages.gateway.request import MAX_TEXT

_ERRORS = {
    "400": "The request is invalid: a value, a name, a combination, a body that is not JSON.",
    "404": "Another model, or an unknown path.",
    "408": "The body did not arrive in time.",
    "413": "The body or the reference audio is too large.",
    "415": "The body is not plain application/json.",
    "422": "The request is valid, but this checkpoint cannot serve it.",
    "431": "The request line and the headers are too large.",
    "500": "A stage failed.",
    "501": "The transfer encoding is not supported.",
    "503": "Temporarily unavailable: repeat the request after Retry-After seconds.",
}
_EVENTS = "text/event-stream"
_HEADERS = {
    "X-Request-Id": "Identifies the request: the one that the client sent, or a new one.",
    "X-Seed": "The seed of the request.",
    "X-Sample-Rate": "Samples per second of the audio.",
    "X-Finish-Reason": "stop or length; in responses to stream: false.",
    "X-Audio-Seconds": "Duration of the audio; in responses to stream: false.",
    "Warning": "Fields of the request that have no effect.",
}


@functools.cache
def document() -> dict[str, Any]:
    """Returns the OpenAPI 3.1 document."""
    reference = "#/components/schemas/{name}"
    [body], schemas = msgspec.json.schema_components([FAMILY.request_fields], ref_template=reference)
    schemas[FAMILY.request_fields.__name__]["properties"] |= _choices()
    schemas["Error"] = _ERROR
    model, models = _object("The model.", "id", "object"), _object("The models.", "object", "data")
    return {
        "openapi": "3.1.0",
        "info": {"title": "Syrinx", "version": "1", "description": "OpenAI's speech API for Qwen3-TTS."},
        "paths": {
            "/v1/audio/speech": {"post": _speech(body)},
            "/v1/audio/voices": _get("Lists the voices and their aliases.", _object("The voices.", "voices", "names")),
            "/v1/audio/models": _get("Lists the model and its aliases.", models),
            "/v1/models": _get("Lists the model and its aliases.", models),
            "/v1/models/{model}": _get("Describes a model.", model, "404", parameter="model"),
            "/health": _get("Reports whether the gateway is ready.", _object("Ready.", "status"), "503"),
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
                "type": {"enum": ["invalid_request_error", "server_error"]},
                "param": {"type": ["string", "null"], "description": "The invalid field."},
                "code": {"type": "string"},
            },
        }
    },
}


def _choices() -> dict[str, Any]:
    """Returns the fields whose values are checked after decoding."""
    return {
        "input": {"type": "string", "minLength": 1, "maxLength": MAX_TEXT},
        "response_format": {"anyOf": [{"enum": list(AudioFormat)}, {"type": "null"}], "default": "wav"},
        "stream_format": {"anyOf": [{"enum": ["audio", "sse"]}, {"type": "null"}], "default": None},
        "task_type": {"anyOf": [{"enum": list(FAMILY.task_types)}, {"type": "null"}], "default": None},
    }


def _speech(body: dict[str, Any]) -> dict[str, Any]:
    audio: dict[str, Any] = {AudioOptions(each).media_type: {} for each in AudioFormat}
    headers = {name: {"description": text, "schema": {"type": "string"}} for name, text in _HEADERS.items()}
    spoken = {"description": "The audio.", "headers": headers, "content": {**audio, _EVENTS: {}}}
    return {
        "summary": "Synthesizes speech.",
        "operationId": "speech",
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {"200": spoken, **_errors(*_ERRORS)},
    }


def _get(summary: str, found: dict[str, Any], *errors: str, parameter: str | None = None) -> dict[str, Any]:
    """Returns the GET and HEAD operations of a path."""
    operation: dict[str, Any] = {"summary": summary, "responses": {"200": found, **_errors("431", *errors)}}
    if parameter is not None:
        operation["parameters"] = [{"name": parameter, "in": "path", "required": True, "schema": {"type": "string"}}]
    return {"get": operation, "head": {**operation, "summary": f"{summary} Without the body."}}


def _object(description: str, *required: str) -> dict[str, Any]:
    schema = {"type": "object", "required": list(required)}
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _errors(*statuses: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {status: {"description": _ERRORS[status], "content": content} for status in statuses}
