"""Damage logs of every format: each is read, or refused in one line that names the file.

`python -m tests.logs.test_damage 1000` tries 1,000 mutations of every format.
"""

import collections
import gzip
import json
import random
import sys
import tempfile
from pathlib import Path

import pandas as pd
import pytest
from tensorboardX import SummaryWriter

from emergo.core.errors import InputError
from emergo.logs import read_logs
from tests.store.mutations import damaged_bytes, watchdog

NAMES = (
    "log.csv",
    "log.csv.gz",
    "log.parquet",
    "log.jsonl",
    "trainer_state.json",
    "chart.csv",
    "events",
)


def write(folder: Path, name: str) -> Path:
    table = pd.DataFrame(
        {"step": range(0, 300, 10), "loss": [1 / (1 + s) for s in range(30)], "seed": 3}
    )
    path = folder / name
    if name == "events":
        with SummaryWriter(str(folder), write_to_disk=True) as writer:
            for step, loss in zip(table["step"], table["loss"], strict=True):
                writer.add_scalar("loss", loss, step)
        (path,) = folder.glob("events*")
    elif name == "chart.csv":
        names = {f"a - loss{end}": table["loss"] for end in ("", "__MIN", "__MAX")}
        pd.DataFrame({"Step": table["step"]} | names).to_csv(path, index=False)
    elif name == "trainer_state.json":
        path.write_text(json.dumps({"log_history": table.to_dict("records")}))
    elif name == "log.jsonl":
        table.to_json(path, orient="records", lines=True)
    elif name == "log.parquet":
        table.to_parquet(path)
    elif name == "log.csv.gz":
        path.write_bytes(gzip.compress(table.to_csv(index=False).encode(), mtime=0))
    else:
        table.to_csv(path, index=False)
    return path


def outcomes(folder: Path, name: str, count: int) -> collections.Counter[str]:
    """Count the damaged copies of a log that were refused and read; fail for anything else."""
    path = write(folder, name)
    whole = path.read_bytes()
    counts = collections.Counter()
    for number in range(count):
        what, damaged = damaged_bytes(random.Random(number), whole)
        path.write_bytes(damaged)
        refusal = None
        try:
            with watchdog(20):
                list(read_logs([path]))
        except InputError as error:
            refusal = str(error)
        except Exception as error:
            raise AssertionError(
                f"mutation {number} of {name}, {what}: {type(error).__name__}: {error}"
            ) from error
        assert refusal is None or (path.name in refusal and "\n" not in refusal), (
            number,
            what,
            refusal,
        )
        counts["read" if refusal is None else "refused"] += 1
    return counts


@pytest.mark.parametrize("name", NAMES)
def test_damaged_logs_are_read_or_refused_in_one_line(tmp_path, name):
    counts = outcomes(tmp_path, name, 40)
    assert counts["refused"] > 5


if __name__ == "__main__":
    for kind in NAMES:
        with tempfile.TemporaryDirectory() as place:
            print(kind, dict(outcomes(Path(place), kind, int(sys.argv[1]))), flush=True)
