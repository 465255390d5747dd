"""Fuzzing of what the explorer and the commands read besides studies: records, folders of figures,
and logs. Each mutation changes one file: damaged bytes, something else in its place, or a valid
file with absurd values.
"""

import asyncio
import contextlib
import json
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import pyarrow as pa
import pyarrow.parquet as pq

from emergo.cli._measure import Fit, Forecast, Measure
from emergo.cli._view import View
from emergo.core.errors import InputError
from emergo.store import read_records
from emergo.store.records import write_records
from emergo.study.results import record_tables
from emergo.view import Catalog
from emergo.view._server import make_app

from ..study.crowd import made_up, study
from ..view import asking
from ..view.logs import write_log
from .absurd import absurd_csv, absurd_table
from .mutations import Hung, damaged_bytes, damaged_json, put_in_place, watchdog

SECONDS = 30
LAW = {"name": "law", "formula": "plateau = 1 dim^1.00", "exponents": {"dim": 1.0}}
LAW |= {"terms": [{"term": "dim", "fixed": False}], "tables": ["cells"]}
OF_A_RUN = ("run", "stages", "forecast")


class _Later:
    """A clock by which logs are read again at once."""

    @staticmethod
    def monotonic() -> float:
        return time.monotonic() + 3600


class Gallery:
    """Two sets of records, two figures and two logs, of which one file is changed at a time."""

    def __init__(self, place: Path, run_command: Callable[[Any], tuple[int, str, str]]) -> None:
        self.place = place
        self.run_command = run_command
        self.pristine = place / "gallery"
        self.outside = place / "outside gallery"
        self.outside.mkdir(parents=True)
        (self.outside / "precious.txt").write_text("mine")
        self.pristine.mkdir()
        for name, seeds in (("one", 2), ("two", 3)):
            tables = record_tables([made_up(run) for run in study(2, seeds, name=name).runs])
            write_records(*tables, self.pristine, name)
            self._write_figure(f"figure-{name}")
            folder = self.pristine / f"logs-{name}"
            folder.mkdir()
            write_log(folder / f"{name}.csv")
        self.right = self.ask_all(Catalog(self.pristine))
        self.files = sorted(path for path in self.pristine.rglob("*") if path.is_file())

    def _write_figure(self, name: str) -> None:
        report = {"figure": name, "laws": [LAW], "checks": [{"name": "check", "passed": True}]}
        (self.pristine / f"{name}.json").write_text(json.dumps(report))
        cells = {"identity": list("abcd"), "dim": [1.0, 2.0, 3.0, 4.0], "plateau": [1.0, 2, 4, 4]}
        pq.write_table(pa.table(cells), self.pristine / f"{name}.cells.parquet")
        lines = {"step": [0, 1, 2, 0, 1, 2], "loss": [1.0, 0.5, 0.1, 1.0, 0.6, 0.3]}
        pq.write_table(pa.table(lines), self.pristine / f"{name}.lines.parquet")
        (self.pristine / f"{name}.png").write_bytes(b"\x89PNG\r\n\x1a\n")

    def ask_all(self, catalog: Catalog) -> dict[str, str]:
        """Ask every endpoint about every set; return the answers by set, and the notes.

        Raises `AssertionError` for a status other than an answer or one line for a wrong request.
        """
        app = make_app(catalog, "token")

        async def ask(path: str, **parameters: str) -> str:
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url=asking.HOST) as client:
                query = parameters | {"token": "token"}
                answer = await client.get(f"/api/{path}", params=query)
            if answer.status_code not in (200, 400, 404):
                raise AssertionError(f"{path} answers {answer.status_code}: {answer.text[:300]}")
            if answer.status_code == 200 and path not in ("picture", "curves"):
                json.loads(answer.text, parse_constant=_refuse)
            return answer.text if path != "curves" else repr(answer.content)

        async def everything() -> dict[str, str]:
            index = json.loads(await ask("index"))
            notes = [index["notes"], *(one["notes"] for one in index["sets"])]
            answers = {"notes": json.dumps(notes)}
            await ask("live")
            for one in index["sets"]:
                key = one.pop("key")
                one.pop("version")
                texts = [json.dumps(one)]
                table = json.loads(await ask("runs", set=key))
                runs = table["columns"]["identity"]
                table.pop("version")
                texts.append(json.dumps(table))
                texts.append(await ask("picture", set=key))
                texts.append(await ask("law", set=key, x=json.dumps(["dim"])))
                for run in runs[:1]:
                    texts += [await ask(name, set=key, run=run) for name in OF_A_RUN]
                name = next(iter(one["curves"]), "loss")[:5000]
                texts.append(await ask("curves", set=key, runs=",".join(map(str, runs)), name=name))
                answers[key] = "\n".join(texts)
            return answers

        async def here(answer: Callable[..., Any], *about: Any) -> Any:
            return answer(*about)

        # Without threads, which cost more than the answers on a busy machine.
        with mock.patch("emergo.view._server.run_in_threadpool", here):
            return asyncio.run(everything())

    def judge(self, number: int) -> tuple[str, str, str]:
        """Return the verdict on mutation `number`, its description, and the details of a bug."""
        rng = random.Random(number)
        folder = self.place / "changed gallery"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.pristine, folder)
        path = folder / rng.choice(self.files).relative_to(self.pristine)
        catalog = Catalog(folder)
        if path.suffix == ".csv":
            catalog.sets()  # a log that is watched changes after it was read
        what = f"{path.name}: {_change(rng, path, self.outside)}"
        try:
            with watchdog(SECONDS), mock.patch("emergo.view._logs.time", _Later):
                return self._judge(catalog, path, pages=number % 20 == 0), what, ""
        except Hung:
            return "hung", what, ""
        except AssertionError as error:
            return "wrong", what, str(error)
        except Exception as error:
            return "crashed", what, f"{type(error).__name__}: {error}"

    def _judge(self, catalog: Catalog, path: Path, pages: bool) -> str:
        folder = catalog.path
        answers = self.ask_all(catalog)
        self._try_commands(folder, path, pages)
        assert [file.name for file in self.outside.iterdir()] == ["precious.txt"], "outside changed"
        assert (self.outside / "precious.txt").read_text() == "mine", "outside changed"
        own = path.name.partition(".")[0]  # the set of the file
        if path.suffix == ".csv":
            own = path.parent.name
        changed = {key for key, text in self.right.items() if answers.get(key) != text}
        others = {key for key in changed - {"notes"} if own not in key}
        assert not others, f"the intact sets {others} are shown in another way"
        if own in answers["notes"] or path.name in answers["notes"]:
            return "named"
        if not changed:
            return "harmless"
        # Records have checksums. Figures and logs have none: these show what they hold.
        listed = path.suffix == ".parquet" and (folder / f"{own}.sha256").is_file()
        assert not listed, "a set of records is shown in another way, and nothing is named"
        return "forged"

    def _try_commands(self, folder: Path, path: Path, pages: bool) -> None:
        out = self.place / "gallery out"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        commands: list[Any] = []
        if path.suffix == ".csv":
            commands += [Measure(logs=(path,), metric="loss", below=1.0, json=True)]
            commands += [Forecast(logs=(path,), metric="loss", below=1.0)]
        elif path.suffix == ".parquet":
            commands += [Fit(path, x=("dim",), resamples=100, out=out, json=True)]
            commands += [Measure(logs=(path,), metric="loss", below=0.5, json=True)]
        if pages:
            commands += [View(folder, export=out / "view.html", json=True)]
        for command in commands:
            status, text, err = self.run_command(command)
            name = type(command).__name__
            assert status in (0, 2), f"{name} ended with {status}: {err[:300]}"
            assert all(line.startswith("emergo: ") for line in err.splitlines()), err[:300]
            assert "\x1b" not in text + err, f"{name} printed a terminal escape"
        # One line that names the file, or records; several tables of the folder are none.
        records = out / "records"
        records.mkdir()
        for file in folder.glob("*.sha256"):
            for one in folder.glob(f"{file.stem}.*"):
                with contextlib.suppress(OSError, shutil.Error):
                    shutil.move(one, records / one.name)
        with contextlib.suppress(InputError):
            read_records(records)


def _refuse(name: str) -> None:
    raise AssertionError(f"an answer holds {name}, which is no JSON")


def _change(rng: random.Random, path: Path, outside: Path) -> str:
    """Change a file and return how."""
    how = rng.random()
    if how < 0.15:
        return put_in_place(rng, path, outside)
    if how < 0.45 or path.suffix not in (".parquet", ".json", ".csv"):
        words, data = damaged_bytes(rng, path.read_bytes())
        path.write_bytes(data)
        return words
    if path.suffix == ".json":
        words, data, _ = damaged_json(rng, path.read_bytes())
        path.write_bytes(data)
        return words
    words = absurd_csv(rng, path) if path.suffix == ".csv" else absurd_table(rng, path)
    listed = path.with_name(f"{path.name.partition('.')[0]}.sha256")
    if rng.random() < 0.8:  # the checksums would refuse it
        listed.unlink(missing_ok=True)
    return words
