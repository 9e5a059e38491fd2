"""The one table from exceptions to HTTP status and code, and the error bodies of the dialects.

A dialect is chosen by the path: native routes answer `{"error": {"message": …}}`, OpenAI's a flat object.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response

from ramet.errors import (
    ConfigError,
    DuplicateRequestError,
    EngineDeadError,
    ExecutorError,
    NotFoundError,
    OverloadedError,
    RametError,
    RequestAborted,
    RequestError,
    RequestTooLong,
)

#: Most specific first: exception, status on native routes, status on OpenAI routes, `type` of the OpenAI body.
TABLE: tuple[tuple[type[RametError], int, int, str], ...] = (
    (NotFoundError, 404, 404, "NotFoundError"),
    (DuplicateRequestError, 400, 409, "ConflictError"),
    (RequestTooLong, 400, 400, "BadRequestError"),
    (RequestError, 400, 400, "BadRequestError"),
    (ConfigError, 400, 400, "BadRequestError"),
    (OverloadedError, 503, 503, "ServiceUnavailableError"),
    (EngineDeadError, 503, 503, "ServiceUnavailableError"),
    (RequestAborted, 499, 499, "RequestAborted"),
    (ExecutorError, 500, 500, "InternalServerError"),
    (RametError, 500, 500, "InternalServerError"),
)

#: Paths outside /v1 that speak OpenAI's dialect.
_OPENAI_PATHS = ("/v1/", "/tokenize", "/detokenize", "/invocations")


class BodyTypeError(RequestError):
    """A value of the wrong JSON type or an unknown key in a closed object: refused before anything looks at it."""


class BodyTooLarge(RequestError):
    """The body is longer than `--max-request-mb` (HTTP 413)."""


def is_openai(path: str) -> bool:
    """Whether errors on this path have OpenAI's shape."""
    return path.startswith(_OPENAI_PATHS)


def status_of(error: RametError, *, openai: bool) -> tuple[int, str]:
    """HTTP status and OpenAI `type` of an error."""
    if isinstance(error, BodyTooLarge):
        return 413, "RequestEntityTooLarge"
    for kind, native_status, openai_status, name in TABLE:
        if isinstance(error, kind):
            return (openai_status if openai else native_status), name
    raise AssertionError(error)


def openai_error(message: str, type: str, code: int, param: str | None = None) -> dict[str, Any]:
    """The flat error object of OpenAI routes."""
    return {"object": "error", "message": message, "type": type, "param": param, "code": code}


def openai_object(error: RametError) -> dict[str, Any]:
    """An error as OpenAI routes show it, in a body or inside a stream."""
    status, name = status_of(error, openai=True)
    if isinstance(error, BodyTypeError):
        name = "Bad Request"
    return openai_error(error.message, name, status, error.field)


def native_object(error: RametError) -> dict[str, Any]:
    """An error inside a native stream."""
    status, _ = status_of(error, openai=False)
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": error.message, "type": kind, "code": status, "retryable": status == 503}}


def error_response(error: RametError, path: str) -> Response:
    """The whole answer for an error raised before the answer began."""
    openai = is_openai(path)
    status, _ = status_of(error, openai=openai)
    body: Any
    if openai:
        body = openai_object(error)
    elif isinstance(error, BodyTypeError):
        body = {"error": error.message}
    elif status >= 500:
        body = openai_error(error.message, str(status), status)
    else:
        body = {"error": {"message": error.message}}
    return json_response(body, status)


def http_error_response(status: int, message: str) -> Response:
    """Errors of the HTTP layer itself: no such route, wrong method."""
    return json_response(openai_error(message, str(status), status), status)


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """UTF-8 JSON; NaN and infinities become null."""
    return Response(msgspec.json.encode(body), status, headers, "application/json")


def reason(status: int) -> str:
    """The phrase of a status, for statuses HTTP knows."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"
