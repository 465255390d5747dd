"""Requests to the server's application without a socket."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

HOST = "http://127.0.0.1:8642"


def ask(app: Any, path: str, method: str = "GET", **options: Any) -> httpx.Response:
    """Send one request from another thread, because the browser's fixture runs a loop here."""

    async def answer() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url=HOST) as client:
            return await client.request(method, path, **options)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(answer())).result()
