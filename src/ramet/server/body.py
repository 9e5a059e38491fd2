"""Request bodies: read within a limit, decoded into msgspec Structs with exact types, errors that name the field."""

from __future__ import annotations

import re
from typing import Any, Generic, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from ramet.errors import RequestAborted, RequestError
from ramet.server.errors import BodyTooLarge, BodyTypeError, type_error

T = TypeVar("T", bound=msgspec.Struct)

_MALFORMED_AT = re.compile(r"\(byte (\d+)\)$")
_NON_FINITE = re.compile(rb"-?(NaN|Infinity)")
_KEY_BEFORE = re.compile(rb'"((?:[^"\\]|\\.)*)"\s*:\s*-?$')


class Body(Generic[T]):
    """Decoder of one request type. `known` are its keys, for the warning about others."""

    def __init__(self, kind: type[T]) -> None:
        self.kind = kind
        self.known = frozenset(field.encode_name for field in msgspec.structs.fields(kind))
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)
        self._keys: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])

    def decode(self, raw: bytes) -> tuple[T, dict[str, bytes]]:
        """The body, and the top-level keys that its type does not have, with their JSON."""
        value: T = decode_with(self._decoder, raw)
        keys = decode_with(self._keys, raw)  # may fail by itself: what the type does not have was only skipped
        unknown = {key: bytes(text) for key, text in keys.items() if key not in self.known}
        return value, unknown


def decode_with(decoder: msgspec.json.Decoder[Any], raw: bytes, at: str = "") -> Any:
    """Decode or raise an error that names the field; `at` is the path of `raw` inside the body."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise type_error(str(error), at) from None
    except RecursionError:
        raise RequestError("The body is nested too deeply.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _malformed(raw, str(error)) from None


def _malformed(raw: bytes, text: str) -> RequestError:
    """JSON has no NaN and no Infinity, but Python clients send them: then the error names the field, too."""
    match = _MALFORMED_AT.search(text)
    if match:
        offset = int(match[1])
        start = offset - 1 if raw[offset - 1 : offset] == b"-" else offset
        literal = _NON_FINITE.match(raw, start)
        key = _KEY_BEFORE.search(raw[max(0, start - 300) : start])
        if literal and key:
            name = key[1].decode("utf-8", "replace")
            return RequestError(f"{name} must be a finite number, not {literal[0].decode()}.", field=name)
    if text == "Input data was truncated" and re.search(rb"\\u[dD][89a-fA-F]", raw):
        return RequestError("The body is not valid JSON: it is cut short, or has half of a surrogate pair.")
    return RequestError(f"The body is not valid JSON: {text[0].lower()}{text[1:]}.")


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The whole body; raises `BodyTooLarge` as soon as that is known."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit_bytes:
        raise BodyTooLarge(f"The body of {declared} bytes is longer than the {limit_bytes} bytes allowed.")
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > limit_bytes:
                raise BodyTooLarge(f"The body is longer than the {limit_bytes} bytes allowed.")
            parts.append(part)
    except ClientDisconnect:
        raise RequestAborted("The client went away before its request was complete.") from None
    return b"".join(parts)


def require_json(request: Request) -> None:
    """OpenAI routes insist on the media type; parameters such as charset do not matter."""
    given = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if given != "application/json":
        raise BodyTypeError(f"Content-Type must be application/json, not {given or 'missing'}.")
