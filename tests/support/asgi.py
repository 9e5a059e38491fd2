"""A client that drives an ASGI app directly: streams event by event, and can go away at any moment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from starlette.types import ASGIApp, Message


class Exchange:
    """One request and what has been answered so far."""

    def __init__(self, app: ASGIApp, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> None:
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self._to_app: asyncio.Queue[Message] = asyncio.Queue()
        self._to_app.put_nowait({"type": "http.request", "body": body, "more_body": False})
        self._arrived = asyncio.Event()
        self._read = 0
        self.task = asyncio.ensure_future(app(scope, self._to_app.get, self._receive))
        self.task.add_done_callback(lambda _: self._arrived.set())

    async def _receive(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.body += message.get("body", b"")
        self._arrived.set()

    async def finish(self) -> Exchange:
        """Wait for the whole answer."""
        await asyncio.wait_for(self.task, 20)
        return self

    async def event(self) -> Any:
        """The next event of the stream: its JSON, "[DONE]", a comment (":…"), or None at the end."""
        while b"\n\n" not in self.body[self._read :]:
            if self.task.done():
                self.task.result()
                return None
            self._arrived.clear()
            await asyncio.wait_for(self._arrived.wait(), 20)
        end = self.body.index(b"\n\n", self._read)
        text, self._read = self.body[self._read : end].decode(), end + 2
        if text.startswith(":"):
            return text
        assert text.startswith("data: "), text
        data = text.removeprefix("data: ")
        return data if data == "[DONE]" else json.loads(data)

    async def events(self) -> list[Any]:
        """All events that are left."""
        found = []
        while (event := await self.event()) is not None:
            found.append(event)
        return found

    async def leave(self) -> None:
        """Close the connection."""
        self._to_app.put_nowait({"type": "http.disconnect"})
        await asyncio.wait({self.task}, timeout=20)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Makes requests of one app."""

    def __init__(self, app: ASGIApp, **headers: str) -> None:
        self._app = app
        self._headers = headers

    def open(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        raw: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Exchange:
        """Send a request; the answer arrives while the caller does something else."""
        data = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        given = {"content-type": "application/json", **self._headers, **(headers or {})}
        return Exchange(self._app, method, path, data, given)

    async def get(self, path: str, **kwargs: Any) -> Exchange:
        return await self.open("GET", path, **kwargs).finish()

    async def post(self, path: str, body: Any = None, **kwargs: Any) -> Exchange:
        return await self.open("POST", path, body, **kwargs).finish()

    def stream(self, path: str, body: Mapping[str, Any], **kwargs: Any) -> Exchange:
        return self.open("POST", path, {**body, "stream": True}, **kwargs)
