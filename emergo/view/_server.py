"""HTTP server of the explorer: read-only, with the page's own files and data of runs only."""

from collections.abc import Callable
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ..core.errors import InputError
from ..core.json import parse_json, to_jsonable
from ..store.reader import checker
from ._answers import fit, run_detail, stages
from ._bundle import STATIC
from ._catalog import Catalog
from ._guard import Guard
from ._runset import Learned

KINDS = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}


def chosen(value: Any) -> bool:
    """Return True for a filter: a list of values, or a range, for each of its columns."""
    return isinstance(value, dict) and all(
        isinstance(o, list) or _is_range(o) for o in value.values()
    )


def _is_range(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"low", "high"}
        and all(isinstance(end, int | float) for end in value.values())
    )


_check_request = checker({"x": [str], "where": chosen})
BATCH = 500  # most curves in one answer
POINTS = range(8, 501)  # points of a curve
SMOOTH = range(1, 1000)  # evaluations in a running mean


def make_app(catalog: Catalog, token: str, port: int = 0) -> Guard:
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
        points = _whole(request, "points", 128, POINTS)
        smooth = _whole(request, "smooth", 1, SMOOTH)
        name = _text(request, "name", "loss")
        thinned = catalog.thinned(_text(request, "set"), runs, name, points, smooth)
        return Response(pack(thinned), media_type="application/octet-stream")

    def picture(request: Request) -> Response:
        data = catalog.picture(_text(request, "set"))
        if data is None:
            return PlainTextResponse("no picture", 404)
        return Response(data, media_type="image/png")

    def law(request: Request) -> dict[str, Any]:
        try:
            terms = parse_json(_text(request, "x", "[]").encode())
            where = parse_json(_text(request, "where", "{}").encode())
            _check_request({"x": terms, "where": where}, "the request")
        except ValueError:
            raise InputError(
                "x must be a JSON list of terms, and where must be an object of lists or ranges"
            ) from None
        return fit(catalog.get(_text(request, "set")), _text(request, "y", "plateau"), terms, where)

    def live(request: Request) -> dict[str, Any]:
        versions = {key: runs.version for key, runs in catalog.sets().items()}
        return {"status": to_jsonable(catalog.status()), "versions": versions}

    def of_set(answer: Callable[..., Any], *names: str) -> Callable[[Request], Any]:
        """Make a handler that passes a set and the parameters `names` to `answer`."""
        return lambda request: answer(
            catalog.get(_text(request, "set")), *(_text(request, name) for name in names)
        )

    handlers: dict[str, Callable[[Request], Any]] = {
        "/": page_file,
        "/static/{name:path}": page_file,
        "/api/index": lambda request: catalog.overview(),
        "/api/runs": of_set(lambda runs: runs.table()),
        "/api/curves": curves,
        "/api/run": of_set(run_detail, "run"),
        "/api/stages": of_set(stages, "run"),
        "/api/forecast": lambda request: catalog.look_back(
            _text(request, "set"), _text(request, "run"), _learned(request)
        ),
        "/api/law": law,
        "/api/live": live,
        "/api/picture": picture,
    }
    routes = [Route(path, _endpoint(answer), methods=["GET"]) for path, answer in handlers.items()]
    return Guard(Starlette(routes=routes), token, port)


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


def _learned(request: Request) -> Learned | None:
    """Return what counts as learned in a log, if the request says so."""
    ends = {}
    for name in ("below", "above"):
        text = _text(request, name)
        try:
            ends[name] = float(text) if text else None
        except ValueError:
            raise InputError(f"{name} must be a number, got '{text[:40]}'") from None
    metric = _text(request, "metric")
    return Learned(metric, **ends) if metric else None


def _whole(request: Request, name: str, default: int, allowed: range) -> int:
    text = _text(request, name, str(default))
    if text not in map(str, allowed):
        raise InputError(
            f"{name} must be a whole number from {allowed[0]} to {allowed[-1]}, got '{text[:40]}'"
        )
    return int(text)


def _text(request: Request, name: str, default: str = "") -> str:
    return request.query_params.get(name, default)


def pack(curves: list[tuple[np.ndarray, np.ndarray]]) -> bytes:
    """Pack curves for the page: their number and lengths (32-bit), then all x, then all y."""
    head = np.array([len(curves), *(len(x) for x, _ in curves)], "<u4")
    parts = [np.asarray(curve[i], "<f4") for i in (0, 1) for curve in curves]
    return b"".join(part.tobytes() for part in (head, *parts))
