"""A gRPC client in a process of its own, made from the .proto alone: `python grpc_client.py ADDRESS METHOD JSON [KEY]`.

Prints each message as a line of JSON, and at the end a line with the status. It imports nothing of ramet.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import grpc
from google.protobuf import json_format


def main(address: str, method: str, request: str, key: str = "") -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src" / "ramet" / "server" / "grpc"))
    messages, services = grpc.protos_and_services("ramet.proto")
    descriptor = messages.DESCRIPTOR.services_by_name["Ramet"].methods_by_name[method]
    body = json_format.Parse(request, getattr(messages, descriptor.input_type.name)())
    with grpc.insecure_channel(address) as channel:
        metadata = [("authorization", f"Bearer {key}")] if key else []
        answer = getattr(services.RametStub(channel), method)(body, metadata=metadata, timeout=60)
        try:
            for message in answer if descriptor.server_streaming else [answer]:
                shown = json_format.MessageToDict(message, preserving_proto_field_name=True)
                print(json.dumps(shown), flush=True)
        except grpc.RpcError as error:
            print(json.dumps({"code": error.code().name, "details": error.details()}), flush=True)
        else:
            print(json.dumps({"code": "OK"}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
