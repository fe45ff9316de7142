"""A fake gateway that streams PCM on a fixed schedule over a real server, to test load generators."""

import asyncio

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.requests import Request

from syrinx_stages.contract.family import FAMILY

SECOND = 2 * FAMILY.sample_rate
"""Bytes of one second of PCM."""
LOUD = (1000).to_bytes(2, "little", signed=True)


class TimedGateway:
    """`schedule`: (delay in seconds, PCM) of each chunk. Records request bodies and how many streams overlapped."""

    def __init__(self, schedule):
        self.schedule = schedule
        self.bodies = []
        self.concurrent = 0
        self.max_concurrent = 0
        self.refuse = None
        self.cut_off = False
        self.app = FastAPI()
        self.app.post("/v1/audio/speech")(self.speech)
        self.app.get("/v1/audio/voices")(self.voices)

    async def voices(self):
        return {"names": ["us", "gb"]}

    async def speech(self, request: Request):
        self.bodies.append(await request.json())
        if self.refuse is not None:
            status, content = self.refuse
            return JSONResponse(content, status) if isinstance(content, dict) else Response(content, status)
        if not self.bodies[-1].get("stream"):
            return Response(b"".join(chunk for _, chunk in self.schedule))
        return StreamingResponse(self.chunks(), media_type="audio/pcm")

    async def chunks(self):
        self.concurrent += 1
        self.max_concurrent = max(self.max_concurrent, self.concurrent)
        try:
            for delay, chunk in self.schedule:
                await asyncio.sleep(delay)
                yield chunk
            if self.cut_off:
                raise ConnectionAbortedError("scripted")
        finally:
            self.concurrent -= 1
