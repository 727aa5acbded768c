"""Errors as clients of OpenAI's API expect them: ``{"error": {message, type, param, code}}``."""

from __future__ import annotations

import logging
import math

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from wantrn.serving.jobs.manager import QueueFullError, UnavailableError

_log = logging.getLogger("wantrn.http")

_BUSY_SECONDS = 5.0  # about what ranks take to start, once the checkpoint is in the system's cache


class ApiError(Exception):
    """A reply that is an error.

    ``param`` is the field at fault, if there is one; ``code`` a short word for programs.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after

    def reply(self) -> JSONResponse:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        body = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        headers = {}
        if self.retry_after is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after)))
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse({"error": body}, self.status, headers)


def add_error_handlers(app: FastAPI) -> None:
    """Every error of ``app`` has the same form, and none shows what is inside."""

    @app.exception_handler(ApiError)
    async def own(request: Request, error: ApiError) -> JSONResponse:
        return error.reply()

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        param = str(first["loc"][-1])
        return ApiError(400, f"{param}: {first['msg']}", param=param, code="invalid_value").reply()

    @app.exception_handler(QueueFullError)
    async def full(request: Request, error: QueueFullError) -> JSONResponse:
        return ApiError(429, str(error), code="queue_full", retry_after=error.retry_after).reply()

    @app.exception_handler(UnavailableError)
    async def unavailable(request: Request, error: UnavailableError) -> JSONResponse:
        return ApiError(503, str(error), code="unavailable", retry_after=_BUSY_SECONDS).reply()

    @app.exception_handler(HTTPException)
    async def plain(request: Request, error: HTTPException) -> JSONResponse:
        return ApiError(error.status_code, str(error.detail)).reply()

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        _log.error("%s %s", request.method, request.url.path, exc_info=error)
        return ApiError(500, "an error of the server, which its log tells").reply()
