"""Compiles the gRPC service's .proto into `ramet.binpb`, or says whether that is current (`--check`)."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet

FOLDER = Path(__file__).resolve().parent.parent / "src" / "ramet" / "server" / "grpc"
COMPILED = FOLDER / "ramet.binpb"


def compile_proto() -> bytes:
    """The descriptor of the file, as protoc (of grpcio-tools) writes it."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.binpb"
        protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{FOLDER}", f"--descriptor_set_out={out}"]
        subprocess.run([*protoc, "ramet.proto"], check=True)
        return out.read_bytes()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the descriptor is not current")
    check: bool = parser.parse_args().check
    compiled = compile_proto()
    # Compared as messages: two versions of protoc may order bytes differently.
    if COMPILED.exists() and FileDescriptorSet.FromString(COMPILED.read_bytes()) == FileDescriptorSet.FromString(
        compiled
    ):
        return 0
    if check:
        print(f"not current: {COMPILED.name}; run scripts/proto", file=sys.stderr)
        return 1
    COMPILED.write_bytes(compiled)
    return 0


if __name__ == "__main__":
    sys.exit(main())
