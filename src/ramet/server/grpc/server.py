"""The gRPC server beside the HTTP one, on the same event loop."""

from __future__ import annotations

import grpc.aio

from ramet.errors import ConfigError
from ramet.server.context import Context
from ramet.server.grpc.service import Service


class RpcServer:
    """Listens from `start` on; until the context has its frontend, calls fail with UNAVAILABLE."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 0),  # else a second server would take half of the first one's connections
                ("grpc.max_receive_message_length", context.body_limit_bytes),
                ("grpc.max_send_message_length", -1),
            ]
        )
        self._server.add_generic_rpc_handlers((Service(context).handlers(),))
        self.address = ""

    async def start(self) -> None:
        """Listen. Raises `ConfigError` when the address cannot be had."""
        host, port = self._context.server.host, self._context.server.grpc_port or 0
        name = f"[{host}]" if ":" in host else host
        try:
            bound = self._server.add_insecure_port(f"{name}:{port}")
        except RuntimeError:
            bound = 0
        if not bound:
            raise ConfigError(
                f"cannot listen on {host}:{port} for gRPC: in use, or no address of this machine; choose another with "
                "--grpc-port (0 takes a free one)",
                field="grpc_port",
            )
        await self._server.start()
        self.address = f"{name}:{bound}"

    async def stop(self, grace_s: float) -> None:
        """Take no more calls and give those that run this long; a second call can shorten it."""
        await self._server.stop(grace_s)
