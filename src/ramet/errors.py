"""Every error ramet raises on purpose, in one tree.

A request's error ends that request and nothing else; the server's edge maps the class to a status and a code
(`ramet.server.errors`). A `BrokenInvariant` ends the process: the state can no longer be trusted.
"""

from __future__ import annotations


class RametError(Exception):
    """Root of the tree. `field` names the request field or flag at fault, where there is one."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class ConfigError(RametError):
    """A flag, file value or environment value that cannot be honoured; the message says how to fix it."""


class CheckpointError(RametError):
    """A model file that is damaged, hostile, incomplete or of an unsupported kind; names file, offset or tensors."""


class PlanError(RametError):
    """A plan that breaks a rule of `plan/ops.py`; names the operation and the shapes."""


class RequestError(RametError):
    """The client's request is wrong (HTTP 400)."""


class RequestTooLong(RequestError):
    """Prompt, or prompt and asked tokens, exceed what this server can ever run; the message has the numbers."""


class NotFoundError(RequestError):
    """The request names something that does not exist (HTTP 404)."""


class DuplicateRequestError(RequestError):
    """A live request already has this id (HTTP 409 on OpenAI routes, 400 on native ones)."""


class OverloadedError(RametError):
    """The waiting queue is full (HTTP 503); the same request may succeed later."""


class RequestAborted(RametError):
    """The request was ended by an abort, a disconnect or a deadline."""


class EngineDeadError(RametError):
    """The engine thread or process has ended; no request can succeed until a restart (HTTP 503)."""


class ExecutorError(RametError):
    """One step failed on the device; the requests in that step end with an error (HTTP 500)."""


class BrokenInvariant(Exception):
    """Our own bookkeeping is wrong. Never caught: ends the engine, loudly."""


def error_named(name: str, message: str) -> RametError | None:
    """An error by the name of its class, as it crosses a channel; None for a name that is not in the tree."""
    kind = globals().get(name)
    return kind(message) if isinstance(kind, type) and issubclass(kind, RametError) else None
