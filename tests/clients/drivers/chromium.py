"""Chromium, headless: a page asks for speech with `fetch` and plays it. The page's server relays to the gateway."""

import asyncio
import tempfile
from pathlib import Path

import aiohttp
from aiohttp import web
from report import BASE_URL, OUT, TEXT, Case, Report

PAGE_SECONDS = 600
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--autoplay-policy=no-user-gesture-required"),
)
JSON = {"Content-Type": "application/json"}
PAGE = Path(__file__).with_suffix(".html")


class Site:
    """The page, the gateway's API on the same origin, and what the page reports."""

    def __init__(self) -> None:
        self.report = Report()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def application(self) -> web.Application:
        application = web.Application(client_max_size=2**26)
        application.add_routes(
            [
                web.get("/", self.page),
                web.post("/v1/{path:.*}", self.relay),
                web.post("/save", self.save),
                web.post("/done", self.finish),
            ]
        )
        return application

    async def page(self, request: web.Request) -> web.Response:
        return web.Response(text=PAGE.read_text().replace("TEXT", TEXT), content_type="text/html")

    async def relay(self, request: web.Request) -> web.StreamResponse:
        async with (
            aiohttp.ClientSession() as session,
            session.post(BASE_URL + request.path, data=await request.read(), headers=JSON) as answer,
        ):
            response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            return response

    async def save(self, request: web.Request) -> web.Response:
        case = Case(request.query["name"])
        case.save(await request.read(), request.query["suffix"], int(request.query["rate"]) or None)
        times = {name: float(request.query[name]) for name in ("started", "heard", "ended")}
        case.started, case.heard, case.ended = times["started"], times["heard"] or None, times["ended"]
        self.report.cases.append(case)
        return web.Response()

    async def finish(self, request: web.Request) -> web.Response:
        if error := await request.text():
            self.done.set_exception(RuntimeError(error))
        else:
            self.done.set_result(None)
        return web.Response()


async def main() -> None:
    site = Site()
    runner = web.AppRunner(site.application())
    await runner.setup()
    server = web.TCPSite(runner, "127.0.0.1", 0)
    await server.start()
    port = runner.addresses[0][1]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, (OUT / "chromium.log").open("wb") as log:
        command = ["chromium", *OPTIONS, f"--user-data-dir={profile}", f"http://127.0.0.1:{port}/"]
        browser = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
        try:
            async with asyncio.timeout(PAGE_SECONDS):
                await site.done
        finally:
            browser.terminate()
            await browser.wait()
            await runner.cleanup()
    site.report.write()


asyncio.run(main())
