"""Parses the body of an upload: multipart/form-data, as OpenAI's and vLLM-Omni's clients send it."""

from collections.abc import AsyncGenerator, Sequence

from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from syrinx_stages.gateway.errors import bad_request
from syrinx_stages.gateway.fields.json_objects import RawBody
from syrinx_stages.gateway.http.body import Body
from syrinx_stages.gateway.voices.voices import FIELDS, Sample

MAX_PART = 256 * 1024
"""Bytes of a field that is no file: the longest is a speaker embedding as text."""
_MAX_PARTS = 2 * len(FIELDS)
_PIECE = 64 * 1024
"""Bytes that are parsed at once."""


async def parse_form(headers: Headers, body: Body) -> Sequence[tuple[str, str | Sample]]:
    """Returns the fields in their order. Raises `ApiError` 400 if the body is no form."""
    size = len(body)
    parser = MultiPartParser(headers, _pieces(body.take()), max_files=2, max_fields=_MAX_PARTS, max_part_size=MAX_PART)
    parser.spool_max_size = size + 1  # Files stay in memory: the body is bounded.
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise bad_request(None, f"the body is not a valid form: {error.message}", "invalid_form") from None
    try:
        return [(name, await _value(value)) for name, value in form.multi_items()]
    finally:
        await form.close()


async def _pieces(body: RawBody) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(body), _PIECE):
        yield bytes(body[start : start + _PIECE])


async def _value(value: UploadFile | str) -> str | Sample:
    if isinstance(value, str):
        return value
    return Sample(await value.read(), (value.content_type or "application/octet-stream")[:100])
