"""Fuzz test: every command accepts odd input, or refuses it with one line and exit status 2.

    python -m tests.cli.odd [N]    counts accepted and refused inputs, using every N-th input

Nothing is trained: an accepted study ends before training.
"""

import collections
import contextlib
import io
import itertools
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from emergo.cli import main

KEYS = [
    "seeds",
    "retries",
    "unit",
    "keep",
    "name",
    "plugins",
    "task.type",
    "task.length",
    "task.dim",
    "task.burst",
    "task.repeat",
    "model.type",
    "model.layers",
    "model.heads",
    "model.width",
    "optimizer.name",
    "optimizer.learning_rate",
    "optimizer.clip",
    "optimizer.b1",
    "train.batch",
    "train.steps",
    "train.threshold",
    "train.n_test",
    "train.precision",
    "train.probes",
    "train.interventions",
    "grid.dim",
    "grid.learning_rate",
    "zip.dim",
    "tune.learning_rate",
    "law.x",
    "law.y",
    "law.fix",
    "slurm.minutes",
    "slurm.setup",
    "slurm.extra",
    "unknown",
    "task.unknown",
]
VALUES = [
    "-1",
    "0",
    '"text"',
    '""',
    "nan",
    "1e400",
    "[]",
    "[[]]",
    "{}",
    "true",
    "9" * 30,
    '"\\u001b[31m[/red]"',
]
FILES = {
    "deep.toml": "a = " + "[" * 5000 + "]" * 5000,
    "dots.toml": ".".join(["a"] * 3000) + " = 1",
    "digits.toml": "seeds = " + "9" * 5000,
    "twice.toml": "seeds = 1\nseeds = 2",
    "binary.toml": "\x00\x01",
    "empty.toml": "",
    "many.toml": "seeds = 100000000",
    "grid.toml": "[task]\nlength = 8\n[grid]\ndim = ["
    + ", ".join(map(str, range(1, 2000)))
    + "]\nburst = [1, 2, 3]\nbatch = ["
    + ", ".join(map(str, range(1, 2000)))
    + "]",
    "same.csv": "dim,dim,plateau\n1,2,3\n2,3,4\n4,5,9\n",
    "zero.csv": "dim,plateau\n1,\x00\n2,3\n",
    "quote.csv": 'dim,plateau\n1,"2\n2,3\n',
    "wide.csv": "dim,plateau\n1,2,3,4\n",
    "text.csv": "dim,plateau\na,b\nc,d\ne,f\n",
    "escape.csv": "dim,\x1b[31m\n1,2\n2,3\n4,9\n",
    "huge.csv": f"dim,plateau\n1,{'9' * 5000}\n2,3\n4,9\n",
    "head.csv": "dim,plateau\n",
    "empty.csv": "",
    "text.parquet": "dim,plateau\n",
    "runs.csv": "dim,length,plateau\n4,1,1\n8,2,2\n16,2,5\n",
    "deep.jsonl": '{"step": ' + "[" * 5000,
    "lines.jsonl": '{"step": 0, "loss": 1}\n{"step": 1, "loss": \n{"step": 2}\n',
    "escape.jsonl": '{"step": 0, "\\u001b[31m": 1}\n',
    "halves.jsonl": '{"step": 0, "loss": 1, "\\ud800": "\\udfff"}\n{"step": 1, "loss": 0, '
    '"\\ud800": "\\udfff"}\n',
    "wide.jsonl": "".join(f'{{"step": {i}, "m{i}": 1}}\n' for i in range(300)),
    "trainer_state.json": '{"log_history": {}}',
    "mixed.csv": "step,loss\n0,1\n1,2\n2,3\n0,4\n1,5\n2,6\n",
    "packed.csv.gz": "step,loss\n0,1\n1,0\n",
    "events.out.tfevents.1.a": "no events",
    "log.csv": "run,step,loss\na,0,1\na,10,0.1\nb,0,1\nb,10,0.9\n",
}


def commands(place: Path) -> Iterator[list[str]]:
    for name, content in FILES.items():
        (place / name).write_text(content)
    (place / "file").write_text("")
    (place / "folder").mkdir()
    os.mkfifo(place / "pipe.toml")
    os.mkfifo(place / "pipe.csv")
    (place / "loop.toml").symlink_to("loop.toml")
    for number, (key, value) in enumerate((key, value) for key in KEYS for value in VALUES):
        *table, name = key.split(".")
        base = {
            "task": {"length": "8", "dim": "2"},
            "train": {"steps": "100", "precision": '"fp32"'},
        }
        base.setdefault(table[0] if table else "", {})[name] = value
        blocks = [f"[{block}]\n" if block else "" for block in base]
        texts = [
            head + "".join(f"{k} = {v}\n" for k, v in base[block].items())
            for head, block in zip(blocks, base, strict=True)
        ]
        (place / f"study{number}.toml").write_text(
            "\n".join(sorted(texts, key=lambda text: text.startswith("[")))
        )
        yield ["study", "run", f"{place}/study{number}.toml", "--out", f"{place}/out{number}"]
    for name in (
        *(name for name in FILES if name.endswith("toml")),
        "pipe.toml",
        "loop.toml",
        "folder",
        "absent.toml",
        "file",
    ):
        yield ["study", "run", f"{place}/{name}", "--out", f"{place}/new"]
    for name in (
        *(name for name in FILES if not name.endswith("toml")),
        "pipe.csv",
        "folder",
        "absent.csv",
        "file",
    ):
        yield ["fit", f"{place}/{name}", "--x", "dim", "--resamples", "10", "--out", f"{place}/fit"]
        yield ["measure", f"{place}/{name}", "--metric", "loss", "--below", "0.5"]
    for what in ("status", "show", "export", "grow"):
        more = {"export": ["--to", f"{place}/t.csv"], "grow": ["--seeds", "3"]}.get(what, [])
        for name in ("absent", "file", "folder", "pipe.csv"):
            yield ["study", what, f"{place}/{name}", *more]
    runs = ["fit", f"{place}/runs.csv", "--out", f"{place}/fit"]
    for text in (
        "--x",
        "--x ",
        "--x dim^",
        "--x dim^nan",
        "--x dim^1e999",
        "--x /",
        "--fix dim=nan",
    ):
        yield [*runs, *text.split(" ")]
    for text in (
        "--fix =1",
        "--fix dim=a",
        "--y none",
        "--y ",
        "--resamples -1",
        "--resamples 1e3",
    ):
        yield [*runs, "--x", "dim", *text.split(" ")]
    log = ["measure", f"{place}/log.csv", "--metric", "loss"]
    for text in ("--below a", "--below 1 --above 2", "", "--below nan", "--below inf"):
        yield [*log, *text.split()]
    log += ["--below", "0.5"]
    for text in (
        "--hold 0",
        "--window 2",
        "--window -1",
        "--step none",
        "--run none",
        "--missing x",
    ):
        yield [*log, *text.split()]
    patterns = ["(", "x", "(?P<dim>x)", "(?P<dim>l", "(?P<dim>\\w+)", "(?P<plateau>.)"]
    for pattern in ("", *patterns, "(?P<a>" * 200):
        yield [*log, "--columns", pattern]
    for out in ("", "file/x.csv", "x.txt", "folder", "log.csv"):
        yield [*log, "--out", out and f"{place}/{out}"]
    for option in ["length", "dim", "burst", "repeat", "threshold", "horizon", "flow"]:
        for value in ("", "-1", "nan", "1e400", "9" * 30, "text", "\x1b[31m"):
            given = {"--length": "8", "--dim": "4"} | {f"--{option}": value}
            yield ["theory", *(word for pair in given.items() for word in pair)]
    for option in [
        "length",
        "dim",
        "seeds",
        "learning-rate",
        "steps",
        "task",
        "optimizer",
        "threshold",
        "seconds",
    ]:
        for value in ("", "nan", "[", "text", "[" * 3000, "9" * 30, "\x1b[31m"):
            yield ["train", f"--{option}", value, "--out", f"{place}/train"]
    for text in (
        *("train --out ", "train --out=", "train --name ", "train --unknown 1", "train x"),
        *("figure ", "figure ../../x", "figure x\x00y", "figure \udc80", "figures --unknown", " "),
        *("view ", "doctor --unknown", "study", "study run", "--help --help", "-"),
    ):
        yield text.split(" ")


def outcome(words: list[str]) -> tuple[int, str]:
    """Return exit status and standard error of one command."""
    status = 0
    err = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        try:
            main(words)
        except SystemExit as stop:
            status = int(stop.code or 0)
    return status, err.getvalue()


def survey(place: Path, every: int = 1) -> dict[str, list[tuple[list[str], int, str]]]:
    """Run every n-th command and sort them into accepted, refused, and wrong.

    A wrong command has another exit status, or prints more than one line.
    """
    found: dict[str, list[tuple[list[str], int, str]]] = collections.defaultdict(list)
    with (
        mock.patch("emergo.cli._study.train_studies", return_value=None),
        mock.patch("emergo.cli._train.train_studies", return_value=None),
    ):
        for words in itertools.islice(commands(place), None, None, every):
            status, err = outcome(words)
            one_line = (
                err.startswith("emergo: ")
                and err.count("\n") == 1
                and "\x1b" not in err
                and len(err) < 2000
            )
            what = "accepted" if status == 0 else "refused" if status == 2 and one_line else "wrong"
            found[what].append((words, status, err))
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        counts = survey(Path(folder), *map(int, sys.argv[1:]))
    for words, status, err in counts["wrong"]:
        print(f"{' '.join(words)[:200]!r}: {status}: {err[:300]!r}")
    print(", ".join(f"{len(counts[what])} {what}" for what in ("refused", "accepted", "wrong")))
