"""The FastAPI application: routes, middleware, errors, and the OpenAPI document."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

import ramet
from ramet.errors import RametError
from ramet.server.admin import AbortRequest, Admin, ContinueRequest, PauseRequest, StateRequest
from ramet.server.anthropic.request import CountTokensRequest, MessagesRequest
from ramet.server.anthropic.routes import Messages
from ramet.server.auth import Auth
from ramet.server.context import Context
from ramet.server.errors import error_body, is_openai, openai_error
from ramet.server.info import DetokenizeRequest, Info, TokenizeRequest
from ramet.server.loads import Loads
from ramet.server.metrics import Metrics
from ramet.server.native import Generate, GenerateBody
from ramet.server.ollama.embed import OllamaEmbed, OllamaEmbeddingsRequest, OllamaEmbedRequest
from ramet.server.ollama.models import OllamaModelRequest, OllamaModels
from ramet.server.ollama.routes import Ollama, OllamaChatRequest, OllamaGenerateRequest
from ramet.server.openai.chat import Chat, ChatRequest
from ramet.server.openai.completions import CompletionRequest, Completions
from ramet.server.openai.models import Models
from ramet.server.openai.responses.request import ResponsesRequest
from ramet.server.openai.responses.routes import Responses
from ramet.server.parsers import FunctionCallRequest, Parsers, ReasoningRequest
from ramet.server.responses import error_response, http_error_response, json_response, nested
from ramet.server.sessions import CloseSession, OpenSession, Sessions
from ramet.server.vectors.embeddings import ClassifyRequest, EmbeddingRequest, Embeddings
from ramet.server.vectors.encode import Encode, EncodeRequest
from ramet.server.vectors.rerank import Rerank, RerankRequest
from ramet.server.vectors.score import Score, ScoreRequest

logger = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Response]]


def create_app(context: Context, *, metrics: bool = True) -> FastAPI:
    """The application over `context`, which may get its frontend later: until then routes answer 503."""
    app = FastAPI(
        title="ramet",
        version=ramet.__version__,
        root_path=context.server.fastapi_root_path,
        openapi_url="/openapi.json",
    )
    _add_routes(app, context)
    if metrics:
        # Not through the schema: its answer is not JSON and it is for scrapers.
        app.add_route("/metrics", Metrics(context).scrape, include_in_schema=False)
    app.add_exception_handler(RametError, _ramet_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)
    app.add_middleware(Auth, api_key=context.server.api_key, admin_api_key=context.server.admin_api_key)
    # Without credentials: keys travel in headers that a page must know, never in cookies.
    app.add_middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["*"], allow_headers=["*"])
    return app


def _add_routes(app: FastAPI, context: Context) -> None:
    schemas, vectors, sessions = _Schemas(app), Embeddings(context), Sessions(context)
    parsers, responses, loads = Parsers(context), Responses(context), Loads(context)
    info, admin, models, messages = Info(context), Admin(context), Models(context), Messages(context)
    ollama, library, embed = Ollama(context), OllamaModels(context), OllamaEmbed(context)

    def add(paths: str, handler: Handler, methods: str = "GET", body: type[msgspec.Struct] | None = None) -> None:
        for path in paths.split():
            schemas.add(path, handler, methods.split(), body)

    add("/", info.root, "GET HEAD")
    add("/health /ping", info.health)
    add("/health_generate", info.health_generate)
    add("/ready", info.ready)
    add("/model_info /get_model_info", info.model_info)
    add("/server_info /get_server_info", info.server_info)
    add("/generate", Generate(context, sessions).__call__, "POST PUT", GenerateBody)
    add("/open_session", sessions.open_session, "GET POST", OpenSession)
    add("/close_session", sessions.close_session, "GET POST", CloseSession)
    add("/v1/completions", Completions(context).__call__, "POST", CompletionRequest)
    add("/v1/chat/completions /invocations", Chat(context).__call__, "POST", ChatRequest)
    add("/v1/messages", messages.__call__, "POST", MessagesRequest)
    add("/v1/messages/count_tokens", messages.count_tokens, "POST", CountTokensRequest)
    add("/api/chat", ollama.chat, "POST", OllamaChatRequest)
    add("/api/generate", ollama.generate, "POST", OllamaGenerateRequest)
    add("/api/embed", embed.embed, "POST", OllamaEmbedRequest)
    add("/api/embeddings", embed.embeddings, "POST", OllamaEmbeddingsRequest)
    add("/api/tags", library.tags)
    add("/api/ps", library.running)
    add("/api/show", library.show, "POST", OllamaModelRequest)
    add("/api/version", library.version)
    add("/v1/responses", responses.create, "POST", ResponsesRequest)
    add("/v1/responses/{id}", responses.retrieve)
    add("/v1/responses/{id}", responses.delete, "DELETE")
    add("/v1/responses/{id}/cancel", responses.cancel, "POST")
    add("/v1/responses/{id}/input_items", responses.input_items)
    add("/encode /classify", Encode(context).__call__, "POST PUT", EncodeRequest)
    add("/v1/embeddings", vectors.embeddings, "POST", EmbeddingRequest)
    add("/v1/classify", vectors.classify, "POST", ClassifyRequest)
    add("/v1/rerank /rerank", Rerank(context).__call__, "POST", RerankRequest)
    add("/v1/score /score", Score(context).__call__, "POST", ScoreRequest)
    add("/v1/models", models.list)
    add("/v1/models/{name:path}", models.one)
    add("/v1/tokenize /tokenize", info.tokenize, "POST", TokenizeRequest)
    add("/v1/detokenize /detokenize", info.detokenize, "POST", DetokenizeRequest)
    add("/render", parsers.render, "POST", ChatRequest)
    add("/parse_function_call", parsers.parse_function_call, "POST", FunctionCallRequest)
    add("/separate_reasoning", parsers.separate_reasoning, "POST", ReasoningRequest)
    add("/flush_cache", admin.flush_cache, "GET POST")
    add("/abort_request", admin.abort_request, "POST", AbortRequest)
    add("/pause_generation", admin.pause_generation, "POST", PauseRequest)
    add("/continue_generation", admin.continue_generation, "POST", ContinueRequest)
    add("/set_internal_state", admin.set_internal_state, "POST PUT", StateRequest)
    add("/freeze_gc", admin.freeze_gc, "GET POST")
    add("/v1/loads", loads.loads)


class _Schemas:
    """Adds routes whose bodies are msgspec Structs, and puts the Structs' schemas into the OpenAPI document."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._bodies: list[type[msgspec.Struct]] = []
        self._original = app.openapi
        app.openapi = self._openapi  # type: ignore[method-assign]

    def add(self, path: str, handler: Handler, methods: list[str], body: type[msgspec.Struct] | None) -> None:
        extra: dict[str, Any] = {}
        if body is not None:
            if body not in self._bodies:
                self._bodies.append(body)
            schema = {"$ref": f"#/components/schemas/{body.__name__}"}
            extra["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
        for method in methods:
            self._app.add_api_route(
                path,
                _endpoint(handler),
                methods=[method],
                openapi_extra=extra or None,
                response_class=Response,
                name=handler.__name__ if handler.__name__ != "__call__" else path,
                operation_id=f"{method}{path}".replace("/", "_").replace("{", "").replace("}", "").replace(":", "_"),
            )

    def _openapi(self) -> dict[str, Any]:
        if self._app.openapi_schema is None:
            document = self._original()
            _, components = msgspec.json.schema_components(self._bodies, ref_template="#/components/schemas/{name}")
            document.setdefault("components", {}).setdefault("schemas", {}).update(components)
            self._app.openapi_schema = document
        return self._app.openapi_schema


def _endpoint(handler: Handler) -> Handler:
    """A plain function: FastAPI reads its signature, and it must see `Request` and nothing else."""

    async def endpoint(request: Request) -> Response:
        return await handler(request)

    endpoint.__doc__ = handler.__doc__
    return endpoint


async def _ramet_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RametError)
    return error_response(error, request.url.path)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message, path = str(error.detail), request.url.path
    if message in ("Not Found", "Method Not Allowed"):  # the router's own words; ours say what was asked for
        message = f"There is no route {request.method} {path}; /openapi.json lists what there is."
    return http_error_response(error.status_code, message, path)


async def _unexpected(request: Request, error: Exception) -> Response:
    """A bug of ours: the client gets a plain sentence, the log gets the traceback (Starlette raises it again)."""
    message = "Internal server error."
    body = error_body(request.url.path, message, 500)
    if body is not None:
        return json_response(body, 500)
    if is_openai(request.url.path):
        return json_response(nested(openai_error(message, "InternalServerError", 500), request.url.path), 500)
    return json_response({"error": {"message": message}}, 500)
