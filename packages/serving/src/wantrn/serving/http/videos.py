"""The routes of videos."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import FileResponse
from starlette.concurrency import run_in_threadpool

from wantrn.model.errors import RequestError
from wantrn.model.settings import resolve
from wantrn.serving.http.body import Picture, read_body
from wantrn.serving.http.create import CreateVideo, as_api_error, ask
from wantrn.serving.http.errors import ApiError
from wantrn.serving.http.offer import Offer
from wantrn.serving.http.pictures import PICTURES, picture_file
from wantrn.serving.http.video import Video, VideoDeleted, VideoList, poll_after_ms, video_of
from wantrn.serving.http.watch import MADE
from wantrn.serving.jobs.job import Job, Status
from wantrn.serving.jobs.manager import JobManager

_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}


def error_replies(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For the document of the interface: errors that a route may reply."""
    content = {"application/json": {"schema": _ERROR}}
    return {status: {"description": "an error", "content": content} for status in statuses}


def _create_body() -> dict[str, Any]:
    """For the document of the interface: the two forms of a request."""
    schema = CreateVideo.model_json_schema()
    parts = schema.pop("$defs")
    whole = {**schema, "properties": {**schema["properties"]}}
    whole["properties"]["input_reference"] = {"anyOf": [parts["ImageReference"], {"type": "null"}]}
    whole["properties"]["lora"] = {**schema["properties"]["lora"], "items": parts["LoraUse"]}
    form = {**schema, "properties": {**schema["properties"]}}
    form["properties"]["input_reference"] = {"type": "string", "format": "binary"}
    form["properties"]["lora"] = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": whole["properties"]["lora"],
    }
    for name, value in form["properties"].items():  # a form has no null
        if "anyOf" in value:
            kinds = [kind for kind in value["anyOf"] if kind.get("type") != "null"]
            kept = {key: part for key, part in value.items() if key not in ("anyOf", "default")}
            form["properties"][name] = {**kept, **kinds[0]}
    content = {
        "multipart/form-data": {"schema": form},
        "application/json": {"schema": whole},
    }
    return {"requestBody": {"required": True, "content": content}}


class VideoRoutes:
    """OpenAI's videos API over the jobs of this server."""

    def __init__(self, jobs: JobManager, offer: Offer) -> None:
        self._jobs = jobs
        self._offer = offer

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/videos", tags=["videos"])
        add = router.add_api_route
        add(
            "",
            self.create,
            methods=["POST"],
            response_model=Video,
            openapi_extra=_create_body(),
            responses=error_replies(400, 413, 415, 429, 503),
        )
        add("", self.list, methods=["GET"], response_model=VideoList, responses=error_replies(400))
        one = "/{video_id}"
        unknown = error_replies(404)
        add(one, self.retrieve, methods=["GET"], response_model=Video, responses=unknown)
        add(one, self.delete, methods=["DELETE"], response_model=VideoDeleted, responses=unknown)
        add(
            f"{one}/cancel",
            self.cancel,
            methods=["POST"],
            response_model=Video,
            responses=error_replies(404, 409),
        )
        files: dict[int | str, dict[str, Any]] = {
            200: {"description": "the file", "content": {"video/mp4": {}}}
        }
        add(
            f"{one}/content",
            self.content,
            methods=["GET"],
            response_class=FileResponse,
            responses={**files, **error_replies(400, 404, 422)},
        )
        add(
            f"{one}/preview",
            self.preview,
            methods=["GET"],
            response_class=Response,
            responses={
                200: {"description": "a PNG picture", "content": {"image/png": {}}},
                **unknown,
            },
        )
        return router

    async def create(self, request: Request, response: Response) -> Video:
        """Ask for a video. The reply has the settings that it will be made with."""
        fields, picture = await read_body(request)
        if fields.model not in (None, self._jobs.model):
            raise ApiError(
                400,
                f"model: {fields.model!r} is not here; this server has {self._jobs.model!r}",
                param="model",
                code="model_not_found",
            )
        job = self._submit(fields, picture)
        setattr(request.state, MADE, job.id)
        response.headers["openai-poll-after-ms"] = str(poll_after_ms(None))
        return self._video(job)

    async def list(
        self,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: Literal["asc", "desc"] = "desc",
    ) -> VideoList:
        """The videos of this server, a page of them."""
        try:
            found = self._jobs.page(limit + 1, after, order == "desc")
        except KeyError:
            raise ApiError(
                400, f"after: there is no video {after!r}", param="after", code="invalid_value"
            ) from None
        data = [self._video(job) for job in found[:limit]]
        return VideoList(
            data=data,
            first_id=data[0].id if data else None,
            last_id=data[-1].id if data else None,
            has_more=len(found) > limit,
        )

    async def retrieve(self, video_id: str, response: Response) -> Video:
        """A video's state. One that failed is no error: its ``status`` and ``error`` tell."""
        job = self._job(video_id)
        if not job.status.final:
            wait = poll_after_ms(self._jobs.progress(job.id))
            response.headers["openai-poll-after-ms"] = str(wait)
        return self._video(job)

    async def delete(self, video_id: str) -> VideoDeleted:
        """Forget a video and its file. One that is being made is stopped at the next step."""
        await self._jobs.delete(self._job(video_id))
        return VideoDeleted(id=video_id)

    async def cancel(self, video_id: str) -> Video:
        """Stop making a video, at the next step. It stays, as failed, with the code cancelled."""
        job = self._job(video_id)
        if job.status.final:
            raise ApiError(409, f"the video is {job.status} already", code="ended")
        await self._jobs.cancel(job)
        return self._video(self._job(video_id))

    async def content(
        self,
        video_id: str,
        variant: Literal["video", "thumbnail", "spritesheet"] = "video",
    ) -> FileResponse:
        """The file of a completed video, or a picture of it."""
        job = self._job(video_id)
        if job.status is Status.FAILED:
            reason = "" if job.error is None else f": {job.error.message}"
            raise ApiError(422, f"the video failed{reason}", code="failed")
        if job.status is not Status.COMPLETED:
            raise ApiError(404, f"the video is {job.status}", code="not_ready")
        video = self._jobs.video(job)
        if variant == "video":
            return FileResponse(video, media_type="video/mp4", filename=f"{job.id}.mp4")
        file = await run_in_threadpool(picture_file, video, variant)
        return FileResponse(file, media_type=PICTURES[variant][1], filename=file.name)

    async def preview(self, video_id: str) -> Response:
        """What a running video is coming to: a small picture, from the latents."""
        progress = self._jobs.progress(self._job(video_id).id)
        if progress is None or progress.preview is None:
            raise ApiError(404, "there is no preview now", code="not_ready")
        return Response(progress.preview, media_type="image/png")

    def _submit(self, fields: CreateVideo, picture: Picture | None) -> Job:
        info = self._jobs.engine.info
        image = None if picture is None else picture.image
        asked = ask(fields, image, self._offer, info)
        try:
            settings = resolve(asked.request, info)
            self._offer.check(settings)
            self._jobs.engine.check(settings)
        except RequestError as error:
            raise as_api_error(error) from error
        upload = None if picture is None else (picture.suffix, picture.content)
        return self._jobs.submit(settings, upload, asked.adjusted)

    def _job(self, id: str) -> Job:
        job = self._jobs.get(id)
        if job is None:
            raise ApiError(404, f"there is no video {id!r}", code="not_found")
        return job

    def _video(self, job: Job) -> Video:
        return video_of(job, self._jobs.progress(job.id), self._jobs.position(job.id))
