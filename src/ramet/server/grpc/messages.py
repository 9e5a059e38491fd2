"""The messages of `ramet.proto`, made at import from its compiled descriptor, and what a client has set in one.

A descriptor instead of generated modules: those refuse every protobuf whose major version is not about their own, this
works with any.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import Any, TypeVar

import msgspec
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from ramet.errors import RequestError
from ramet.server.errors import type_error

T = TypeVar("T", bound=msgspec.Struct)


def _load() -> Any:
    """The file's descriptor, in a pool of its own: another library may know a file of the same name."""
    compiled = files(__package__).joinpath("ramet.binpb").read_bytes()
    pool = descriptor_pool.DescriptorPool()
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(compiled).file
    pool.Add(file)
    return pool.FindFileByName(file.name)


_FILE = _load()

#: The one service: its name and methods.
SERVICE = _FILE.services_by_name["Ramet"]


def message_class(descriptor: Any) -> Any:
    """The class of a message type."""
    return message_factory.GetMessageClass(descriptor)


def parse(descriptor: Any, raw: bytes) -> Any:
    """A client's message. Raises `RequestError` for bytes that are none."""
    try:
        return message_class(descriptor).FromString(raw)
    except DecodeError:
        raise RequestError(f"The request is not a valid {descriptor.full_name} message.") from None


def fields_of(message: Message) -> dict[str, Any]:
    """What is set, by name, as JSON would have it: lists, objects with strings as keys, plain values."""
    return {field.name: _plain(field, value) for field, value in message.ListFields()}


def _plain(field: Any, value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        of_value = field.message_type.fields_by_name["value"]
        return {str(key): _plain(of_value, item) for key, item in value.items()}
    if isinstance(value, Message):
        return fields_of(value)
    if not isinstance(value, str | int | float):
        return list(value)
    return shortest(value) if field.type == field.TYPE_FLOAT and isinstance(value, float) else value


def shortest(value: float) -> float:
    """The number that the client wrote: 0.7 as a float is 0.699999988…, and might draw other tokens than HTTP."""
    return float(str(np.float32(value)))


def unknown_fields(message: Message, at: str = "") -> Iterator[str]:
    """The fields that the message has and its type has not, as `sampling_params.16`."""
    for unknown in UnknownFieldSet(message):
        yield f"{at}{unknown.field_number}"
    for field, value in message.ListFields():
        if isinstance(value, Message):
            yield from unknown_fields(value, f"{at}{field.name}.")


def to_struct(kind: type[T], fields: dict[str, Any]) -> T:
    """The body that the HTTP route would have decoded."""
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise type_error(str(error)) from None


def json_map(values: dict[str, Any]) -> dict[str, str]:
    """Each value as JSON."""
    return {key: msgspec.json.encode(value).decode() for key, value in values.items()}
