"""Requests to the server's application, without a socket."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

HOST = "http://127.0.0.1:8642"


def ask(app: Any, path: str, method: str = "GET", **options: Any) -> httpx.Response:
    async def answer() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=HOST) as client:
            return await client.request(method, path, **options)

    with ThreadPoolExecutor(1) as beside:  # a browser's fixture has a loop of its own in this thread
        return beside.submit(lambda: asyncio.run(answer())).result()
