"""The server of the explorer: reads, never writes, and hands out data and the page's own files, nothing else."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from .._errors import InputError
from .._json import to_jsonable
from ._answers import figure_laws, fit, overview, run_detail, stages
from ._catalog import Catalog
from ._guard import Guard
from ._thin import pack

STATIC = Path(__file__).parent / "static"
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
BATCH = 500  # the most curves of one answer
POINTS = (8, 2000)  # the least and the most points of a curve


def make_app(catalog: Catalog, token: str) -> Guard:
    """The application; every request has to pass the guard."""
    files = {path.relative_to(STATIC).as_posix(): path for path in STATIC.rglob("*") if path.suffix in KINDS}

    def page_file(request: Request) -> Response:
        path = files.get(request.path_params.get("name") or "index.html")  # these files and no others
        if path is None:
            return PlainTextResponse("no such file", 404)
        return Response(path.read_bytes(), media_type=KINDS[path.suffix])

    def curves(request: Request) -> Response:
        query = request.query_params
        names = query.get("runs", "").split(",")[:BATCH]
        points = _whole("points", query.get("points", "128"), *POINTS)
        thinned = catalog.thinned(catalog.get(query.get("set", "")), names, query.get("name", "loss"), points)
        return Response(pack(thinned), media_type="application/octet-stream")

    def picture(request: Request) -> Response:
        path = catalog.picture(request.query_params.get("set", ""))
        return FileResponse(path, media_type="image/png") if path else PlainTextResponse("no picture", 404)

    def law(request: Request) -> dict[str, Any]:
        query = request.query_params
        where, terms = (_json(name, query.get(name, default)) for name, default in (("where", "{}"), ("x", "[]")))
        if not isinstance(where, dict) or not all(isinstance(v, list) for v in where.values()):
            raise InputError("where must be an object of lists")
        if not isinstance(terms, list) or not all(isinstance(term, str) for term in terms):
            raise InputError("x must be a list of terms")
        return fit(catalog.get(query.get("set", "")), query.get("y", "plateau"), terms, where)

    def live(request: Request) -> dict[str, Any]:
        status = catalog.status()
        return {"status": to_jsonable(status), "versions": {key: runs.version for key, runs in catalog.sets().items()}}

    def of_run(answer: Callable[..., Any]) -> Callable[[Request], Any]:
        return lambda request: answer(catalog.get(request.query_params.get("set", "")), request.query_params.get("run", ""))

    answers: dict[str, Callable[[Request], Any]] = {
        "/": page_file,
        "/static/{name:path}": page_file,
        "/api/index": lambda request: overview(catalog),
        "/api/runs": lambda request: catalog.get(request.query_params.get("set", "")).table(),
        "/api/curves": curves,
        "/api/run": of_run(run_detail),
        "/api/stages": of_run(stages),
        "/api/forecast": lambda request: catalog.look_back(*(request.query_params.get(name, "") for name in ("set", "run"))),
        "/api/law": law,
        "/api/figure_laws": lambda request: figure_laws(catalog.get(request.query_params.get("set", ""))),
        "/api/live": live,
        "/api/picture": picture,
    }
    routes = [Route(path, _answering(answer), methods=["GET"]) for path, answer in answers.items()]
    return Guard(Starlette(routes=routes), token)


def _answering(answer: Callable[[Request], Any]) -> Callable[[Request], Any]:
    """An answer as a handler: computed beside the others, plain data as JSON, wrong input as one line."""

    async def handle(request: Request) -> Response:
        try:
            value = await run_in_threadpool(answer, request)
        except InputError as error:
            return JSONResponse({"error": str(error)}, 400)
        except Exception as error:  # a file that nobody thought of must not take the page away
            return JSONResponse({"error": f"{type(error).__name__}: {error}"}, 500)
        return value if isinstance(value, Response) else JSONResponse(value)

    return handle


def _whole(name: str, text: str, low: int, high: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -math.inf
    if not low <= value <= high:
        raise InputError(f"{name} must be a whole number from {low} to {high}, got '{text[:40]}'")
    return int(value)


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise InputError(f"{name} is not JSON") from None
