"""Whole answers: JSON, and errors in the dialect of their path."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from ramet.errors import RametError
from ramet.server.errors import (
    BodyTypeError,
    error_body,
    is_anthropic,
    is_ollama,
    is_openai,
    is_responses,
    openai_error,
    openai_object,
    status_of,
)


def error_response(error: RametError, path: str) -> Response:
    """The whole answer for an error raised before the answer began."""
    openai = is_openai(path)
    status, _ = status_of(error, openai=openai or is_anthropic(path) or is_ollama(path))
    body: Any = error_body(path, error.message, status)
    if body is not None:
        return json_response(body, status)
    if openai:
        body = nested(openai_object(error), path)
    elif isinstance(error, BodyTypeError):
        body = {"error": error.message}
    elif status >= 500:
        body = openai_error(error.message, str(status), status)
    else:
        body = {"error": {"message": error.message}}
    return json_response(body, status)


def http_error_response(status: int, message: str, path: str) -> Response:
    """Errors of the HTTP layer itself: no such route, wrong method."""
    body = error_body(path, message, status) or nested(openai_error(message, str(status), status), path)
    return json_response(body, status)


def nested(error: dict[str, Any], path: str) -> dict[str, Any]:
    """OpenAI's flat error object, put under `error` where the Responses API wants it."""
    if not is_responses(path):
        return error
    return {"error": {key: value for key, value in error.items() if key != "object"}}


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """UTF-8 JSON; NaN and infinities become null."""
    return Response(msgspec.json.encode(body), status, headers, "application/json")
