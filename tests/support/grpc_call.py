"""Calls of the gRPC service without sockets: the handlers that a server would run, and what they did to the call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import grpc

from ramet.server.grpc.messages import SERVICE, fields_of, message_class
from ramet.server.grpc.service import Service


class Details(NamedTuple):
    """What a server asks the service for."""

    method: str
    invocation_metadata: tuple[tuple[str, str], ...] = ()


class Refused(Exception):
    """The call ended with a status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self.code = code.name
        self.details = details


class Call:
    """One call and what has been answered so far."""

    def __init__(self, metadata: Mapping[str, str]) -> None:
        self.written: list[Any] = []
        self.sent_metadata: dict[str, str] = {}
        self.arrived = asyncio.Event()
        self.task: asyncio.Task[Any] | None = None
        self._metadata = tuple(metadata.items())

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata

    def cancelled(self) -> bool:
        return self.task is not None and self.task.cancelled()

    async def send_initial_metadata(self, metadata: tuple[tuple[str, str], ...]) -> None:
        assert not self.written
        self.sent_metadata = dict(metadata)

    async def write(self, message: Any) -> None:
        self.written.append(message)
        self.arrived.set()

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise Refused(code, details)

    async def finish(self) -> list[dict[str, Any]]:
        """The messages of the whole answer; raises `Refused`."""
        assert self.task is not None
        answer = await asyncio.wait_for(self.task, 20)
        return [shown(message) for message in ([answer] if answer is not None else self.written)]


class Client:
    """Calls one service."""

    def __init__(self, service: Service, **metadata: str) -> None:
        self._handlers = service.handlers()
        self._metadata = metadata

    def open(self, method: str, request: Mapping[str, Any] | bytes = b"", **metadata: str) -> Call:
        """Begin a call; the answer arrives while the caller does something else."""
        kind = message_class(SERVICE.methods_by_name[method].input_type)
        raw = request if isinstance(request, bytes) else kind(**request).SerializeToString()
        handler = self._handlers.service(Details(f"/{SERVICE.full_name}/{method}"))
        call = Call({**self._metadata, **metadata})
        call.task = asyncio.ensure_future((handler.unary_stream or handler.unary_unary)(raw, call))
        return call

    async def __call__(self, method: str, request: Mapping[str, Any] | bytes = b"", **metadata: str) -> Any:
        """The only message of the answer."""
        (message,) = await self.open(method, request, **metadata).finish()
        return message

    async def refused(self, method: str, request: Mapping[str, Any] | bytes = b"", **metadata: str) -> tuple[str, str]:
        """Code and words of the status that a call ends with."""
        try:
            answer = await self.open(method, request, **metadata).finish()
        except Refused as refusal:
            return refusal.code, refusal.details
        raise AssertionError(f"not refused: {answer}")


def shown(message: Any) -> dict[str, Any]:
    """A message by field names, as it is after its journey; meta_info decoded."""
    fields = fields_of(type(message).FromString(message.SerializeToString()))
    if "meta_info" in fields:
        fields["meta_info"] = {key: json.loads(value) for key, value in fields["meta_info"].items()}
    return fields
