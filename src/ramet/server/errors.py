"""The one table from exceptions to HTTP status, code and gRPC status, and the error bodies of the dialects.

A dialect is chosen by the path: native routes answer `{"error": {"message": …}}`, OpenAI's a flat object, Anthropic's
`{"type": "error", "error": {"type": …, "message": …}}`, Ollama's `{"error": "…"}`.
"""

from __future__ import annotations

import re
from typing import Any

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

#: Most specific first: exception, status on native routes, status on OpenAI routes, `type` of the OpenAI body, status
#: of a gRPC call.
TABLE: tuple[tuple[type[RametError], int, int, str, str], ...] = (
    (NotFoundError, 404, 404, "NotFoundError", "NOT_FOUND"),
    (DuplicateRequestError, 400, 409, "ConflictError", "ALREADY_EXISTS"),
    (RequestTooLong, 400, 400, "BadRequestError", "INVALID_ARGUMENT"),
    (RequestError, 400, 400, "BadRequestError", "INVALID_ARGUMENT"),
    (ConfigError, 400, 400, "BadRequestError", "INVALID_ARGUMENT"),
    (OverloadedError, 503, 503, "ServiceUnavailableError", "UNAVAILABLE"),
    (EngineDeadError, 503, 503, "ServiceUnavailableError", "UNAVAILABLE"),
    (RequestAborted, 499, 499, "RequestAborted", "CANCELLED"),
    (ExecutorError, 500, 500, "InternalServerError", "INTERNAL"),
    (RametError, 500, 500, "InternalServerError", "INTERNAL"),
)

_ANTHROPIC_PATHS = "/v1/messages"
_OLLAMA_PATHS = "/api/"

#: HTTP status -> Anthropic's `type`; any other below 500 is an `invalid_request_error`, any other above an `api_error`.
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    499: "api_error",  # the request was ended, which is not its fault
    503: "overloaded_error",
}

#: Paths that speak OpenAI's dialect.
_OPENAI_PATHS = ("/v1/", "/tokenize", "/detokenize", "/invocations", "/rerank", "/score")


class BodyTypeError(RequestError):
    """A value of the wrong JSON type or an unknown key in a closed object: refused before anything looks at it."""


class BodyTooLarge(RequestError):
    """The body is longer than `--max-request-mb` (HTTP 413)."""


def is_openai(path: str) -> bool:
    """Whether errors on this path have OpenAI's shape."""
    return path.startswith(_OPENAI_PATHS) and not is_anthropic(path)


def is_responses(path: str) -> bool:
    """Whether errors on this path have OpenAI's shape one level down, under `error`."""
    return path.startswith("/v1/responses")


def is_anthropic(path: str) -> bool:
    """Whether errors on this path have Anthropic's shape."""
    return path.startswith(_ANTHROPIC_PATHS)


def is_ollama(path: str) -> bool:
    """Whether errors on this path have Ollama's shape."""
    return path.startswith(_OLLAMA_PATHS)


_PATH = re.compile(r"^(?P<what>.*) - at `\$\.?(?P<path>.*)`$", re.DOTALL)
_KINDS = {"`object`": "an object", "`array`": "an array", "`str`": "a string", "`int`": "an integer"}


def type_error(text: str, at: str = "") -> BodyTypeError:
    """msgspec's sentence about a wrong type with the field in front; `at` is where the value lies in the body."""
    match = _PATH.match(text)
    what, path = (match["what"], match["path"]) if match else (text, "")
    path = ".".join(part for part in (at, path) if part)
    if not path:
        for name, words in _KINDS.items():
            what = what.replace(name, words)
        return BodyTypeError(f"The body is not valid: {what[0].lower()}{what[1:]}.")
    return BodyTypeError(f"{path}: {what[0].lower()}{what[1:]}", field=re.split(r"[.\[]", path)[-1] if at else path)


def status_of(error: RametError, *, openai: bool) -> tuple[int, str]:
    """HTTP status and OpenAI `type` of an error."""
    if isinstance(error, BodyTooLarge):
        return 413, "RequestEntityTooLarge"
    for kind, native_status, openai_status, name, _ in TABLE:
        if isinstance(error, kind):
            return (openai_status if openai else native_status), name
    raise AssertionError(error)


def grpc_code(error: RametError) -> str:
    """The name of the gRPC status of an error."""
    return next(code for kind, *_, code in TABLE if isinstance(error, kind))


def openai_error(message: str, type: str, code: int, param: str | None = None) -> dict[str, Any]:
    """The flat error object of OpenAI routes."""
    return {"object": "error", "message": message, "type": type, "param": param, "code": code}


def openai_object(error: RametError) -> dict[str, Any]:
    """An error as OpenAI routes show it, in a body or inside a stream."""
    status, name = status_of(error, openai=True)
    if isinstance(error, BodyTypeError):
        name = "Bad Request"
    return openai_error(error.message, name, status, error.field)


def anthropic_error(message: str, status: int) -> dict[str, Any]:
    """The error object of Anthropic's routes."""
    kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def error_body(path: str, message: str, status: int) -> dict[str, Any] | None:
    """The error object of a dialect that needs no more than message and status to make it; None for the others."""
    if is_anthropic(path):
        return anthropic_error(message, status)
    return {"error": message} if is_ollama(path) else None


def native_object(error: RametError) -> dict[str, Any]:
    """An error inside a native stream."""
    status, _ = status_of(error, openai=False)
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": error.message, "type": kind, "code": status, "retryable": status == 503}}


def errors_page() -> str:
    """The Markdown page of all errors."""
    lines = [
        "# Errors",
        "",
        "Generated by `scripts/docs` from `src/ramet/server/errors.py`; do not edit.",
        "",
        'Native routes answer `{"error": {"message": …}}`, or `{"error": "…"}` when a value has the wrong JSON type or',
        'a key is unknown; OpenAI routes answer `{"object": "error", "message", "type", "param", "code"}`, those under',
        "`/v1/responses` the same under `error`.",
        "",
        'The other dialects have the OpenAI status: Anthropic\'s `{"type": "error", "error": {"type", "message"}}`,',
        'Ollama\'s `{"error": "…"}`.',
        "",
        "| Python exception | native status | OpenAI status | OpenAI `type` | gRPC status | meaning |",
        "|---|---|---|---|---|---|",
    ]
    for kind, native, openai, name, code in TABLE:
        meaning = " ".join((kind.__doc__ or "").split()).replace("|", "\\|")
        lines.append(f"| `{kind.__name__}` | {native} | {openai} | `{name}` | `{code}` | {meaning} |")
    return "\n".join(lines)
