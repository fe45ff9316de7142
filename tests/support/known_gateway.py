"""A gateway whose timing is known: streams PCM on a schedule, over a real server, to test what measures it."""

import asyncio
import contextlib
import socket

import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.requests import Request

SECOND = 48_000
"""Bytes of a second of PCM."""
LOUD = (1000).to_bytes(2, "little", signed=True)


class KnownGateway:
    """`schedule`: (seconds to wait, bytes to send) of every stream. Records bodies, and how many streams overlapped."""

    def __init__(self, schedule):
        self.schedule = schedule
        self.bodies = []
        self.at_once = 0
        self.most_at_once = 0
        self.refuse = None
        self.cut_off = False
        self.app = FastAPI()
        self.app.post("/v1/audio/speech")(self.speech)
        self.app.get("/v1/audio/voices")(self.voices)

    async def voices(self):
        return {"voices": ["us", "gb"]}

    async def speech(self, request: Request):
        self.bodies.append(await request.json())
        if self.refuse is not None:
            status, content = self.refuse
            return JSONResponse(content, status) if isinstance(content, dict) else Response(content, status)
        if not self.bodies[-1].get("stream"):
            return Response(b"".join(piece for _, piece in self.schedule))
        return StreamingResponse(self.pieces(), media_type="audio/pcm")

    async def pieces(self):
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            for pause, piece in self.schedule:
                await asyncio.sleep(pause)
                yield piece
            if self.cut_off:
                raise ConnectionAbortedError("as asked")
        finally:
            self.at_once -= 1


@contextlib.asynccontextmanager
async def serve(app):
    """Runs an application on a free port; gives its URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
    server.capture_signals = contextlib.nullcontext
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
