"""HTTP server of the explorer: read-only, with the page's own files and data of runs only."""

import json
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ..core.errors import InputError
from ..core.json import to_jsonable
from ._answers import cells, fit, overview, run_detail, stages
from ._bundle import STATIC
from ._catalog import Catalog
from ._guard import Guard
from ._thin import pack

KINDS = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
BATCH = 500  # most curves in one answer
POINTS = range(8, 501)  # points of a curve


def make_app(catalog: Catalog, token: str) -> Guard:
    """Return the application; the guard checks every request."""
    files = {
        path.relative_to(STATIC).as_posix(): path
        for path in STATIC.rglob("*")
        if path.suffix in KINDS
    }

    def page_file(request: Request) -> Response:
        # An allow-list of files, so that no path leads outside of the folder.
        path = files.get(request.path_params.get("name") or "index.html")
        if path is None:
            return PlainTextResponse("no such file", 404)
        return Response(path.read_bytes(), media_type=KINDS[path.suffix])

    def curves(request: Request) -> Response:
        runs = _text(request, "runs").split(",")[:BATCH]
        points = _text(request, "points", "128")
        if points not in map(str, POINTS):
            raise InputError(
                f"points must be a whole number from {POINTS[0]} to {POINTS[-1]}, got "
                f"'{points[:40]}'"
            )
        name = _text(request, "name", "loss")
        thinned = catalog.thinned(_text(request, "set"), runs, name, int(points))
        return Response(pack(thinned), media_type="application/octet-stream")

    def picture(request: Request) -> Response:
        path = catalog.picture(_text(request, "set"))
        if path is None:
            return PlainTextResponse("no picture", 404)
        return FileResponse(path, media_type="image/png")

    def law(request: Request) -> dict[str, Any]:
        where = _json(request, "where", "{}")
        terms = _json(request, "x", "[]")
        if not isinstance(where, dict) or not all(isinstance(v, list) for v in where.values()):
            raise InputError("where must be an object of lists")
        if not isinstance(terms, list) or not all(isinstance(term, str) for term in terms):
            raise InputError("x must be a list of terms")
        return fit(catalog.get(_text(request, "set")), _text(request, "y", "plateau"), terms, where)

    def live(request: Request) -> dict[str, Any]:
        versions = {key: runs.version for key, runs in catalog.sets().items()}
        return {"status": to_jsonable(catalog.status()), "versions": versions}

    def of_set(answer: Callable[..., Any], *names: str) -> Callable[[Request], Any]:
        """Make a handler that passes a set and the parameters `names` to `answer`."""
        return lambda request: answer(
            catalog.get(_text(request, "set")), *(_text(request, name) for name in names)
        )

    def forecast(request: Request) -> dict[str, Any]:
        return catalog.look_back(_text(request, "set"), _text(request, "run"))

    handlers: dict[str, Callable[[Request], Any]] = {
        "/": page_file,
        "/static/{name:path}": page_file,
        "/api/index": lambda request: overview(catalog),
        "/api/runs": of_set(lambda runs: runs.table()),
        "/api/cells": of_set(cells),
        "/api/curves": curves,
        "/api/run": of_set(run_detail, "run"),
        "/api/stages": of_set(stages, "run"),
        "/api/forecast": forecast,
        "/api/law": law,
        "/api/live": live,
        "/api/picture": picture,
    }
    routes = [Route(path, _endpoint(answer), methods=["GET"]) for path, answer in handlers.items()]
    return Guard(Starlette(routes=routes), token)


def _endpoint(answer: Callable[[Request], Any]) -> Callable[[Request], Any]:
    """Run a handler in a thread; plain data become JSON, errors one line with a status."""

    async def handle(request: Request) -> Response:
        try:
            value = await run_in_threadpool(answer, request)
        except InputError as error:
            return JSONResponse({"error": str(error)}, 400)
        except Exception as error:  # an unexpected file must not break the whole page
            return JSONResponse({"error": f"{type(error).__name__}: {error}"}, 500)
        return value if isinstance(value, Response) else JSONResponse(value)

    return handle


def _text(request: Request, name: str, default: str = "") -> str:
    return request.query_params.get(name, default)


def _json(request: Request, name: str, default: str) -> Any:
    try:
        return json.loads(_text(request, name, default))
    except ValueError:
        raise InputError(f"{name} is not JSON") from None
