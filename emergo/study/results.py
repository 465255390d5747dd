"""Results of runs in and out of the store, which holds plain data only."""

import collections
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ..core.errors import InputError
from ..core.terminal import counted
from ..store.curves import read_curves
from ..store.outcomes import is_verified, outcome_row
from ..store.records import Records, read_records, thinned, write_records
from ..store.records import record_tables as plain_tables
from ..store.store import Store
from ..training import Result, Run, Trained, load_parameters, save_parameters


def read_result(source: Store | Records, run: Run, curves: bool = True) -> Result:
    """Return a stored or recorded run; with `curves=False` only its outcome."""
    return Result.restore(run, *source.read(run.identity, curves))


def write_result(store: Store, result: Result) -> Path:
    """Store a finished run and return its folder."""
    return store.write(result.content(), result.curves)


def result_row(result: Result) -> dict[str, Any]:
    """Return a run as one row of a table: its config, seed and outcome."""
    return outcome_row(result.content())


def save_snapshot(store: Store, run: Run, step: int, *state: Any) -> None:
    """Save the parameters of a run during training; they become part of the stored run."""
    save_parameters(store.snapshot_path(run.identity, step), Trained(run, step, *state))


def changed_sources(results: Iterable[Result]) -> str:
    """Describe user code that has changed since runs were trained; return "" if none has."""
    changed: dict[str, set[str]] = {}
    for result in results:
        stored = result.provenance.get("sources") or {}
        now = result.run.config.sources() if stored else {}
        for name, digest in {**stored, **now}.items() if now else ():
            if stored.get(name) != digest or name not in now:
                changed.setdefault(name.rpartition(":")[2], set()).add(result.run.identity)
    if not changed:
        return ""
    names = " and ".join(f"`{name}`" for name in changed)
    runs = counted(len(set().union(*changed.values())), "run")
    owners = " and ".join(dict.fromkeys(name.partition(".")[0] for name in changed))
    verb = "has" if len(changed) == 1 else "have"
    which = "this run was" if runs == "1 run" else f"these {runs} were"
    return (
        f"{names} {verb} changed since {which} trained; raise `version` of {owners} to train again"
    )


def read_parameters(store: Store, run: Run, step: int | None = None) -> Trained:
    """Return the model of a run at a step; by default at the last step kept."""
    sealed = is_verified(store.content(run.identity))
    with store.parameters(run.identity, step) as path:
        return load_parameters(path, run, sealed)


def missing_parts(
    store: Store, run: Run, curves: Sequence[str] = (), keep: Sequence[int] | None = None
) -> list[str]:
    """Return the parts that a stored run lacks: curves, probes of this version, `parameters`.

    A run that failed lacks nothing, because it would fail again.

    **Arguments:**

    - `curves`: names of curves that are needed.
    - `keep`: steps at which parameters are needed; None: no parameters.
    """
    content = store.content(run.identity)
    if content["outcome"]["state"] == "failed":
        return []
    missing = [name for name in curves if name not in content["curves"]]
    stored = content.get("probes", {})
    for name, version in run.config.probe_versions().items():
        if stored.get(name, version) != version:
            missing.append(f"{name} {version}")
    if keep is not None:
        table = read_curves(store.folder, content, lambda name: False)
        evaluations = table.column("step").to_numpy()
        # Parameters are kept at the first evaluation at or after each step.
        needed = {
            int(evaluations[evaluations >= step][0]) for step in keep if step <= evaluations[-1]
        }
        if not all(_has_parameters(store, run, step) for step in needed):
            missing.append("parameters")
    return missing


def _has_parameters(store: Store, run: Run, step: int) -> bool:
    try:
        return read_parameters(store, run, step).step == step
    except InputError:
        return False


def record_tables(results: Iterable[Result]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the two tables of records: outcomes, and curves of the runs that have them."""
    return plain_tables((result.content(), result.curves) for result in results)


def add_records(
    runs: Sequence[Run], store: Store, name: str, folder: Path | str, thin: bool = False
) -> int:
    """Add stored runs to the records called `name`, and return how many were added.

    Runs that the folder has with curves are skipped. If a run is recorded without curves, in the
    folder or in the package, only the curves are added, to the records that hold the run.

    **Arguments:**

    - `thin`: keep only as many evaluations of a curve as a plot can show.
    """
    target = read_records(folder)
    shipped = read_records()
    chosen: dict[str, list[Result]] = {}
    for run in runs:
        identity = run.identity
        if identity not in store or target.holds(identity, curves=True):
            continue
        result = read_result(store, run)
        if thin and result.curves is not None:
            result = result._replace(curves=thinned(result.curves))
        label = name
        recorded = next((records for records in (target, shipped) if identity in records), None)
        if recorded is not None:
            label = recorded.name_of(identity)
            result = with_curves_of(read_result(recorded, run), result)
        chosen.setdefault(label, []).append(result)
    for label, results in chosen.items():
        write_records(*record_tables(results), folder, label)
    return sum(map(len, chosen.values()))


def with_curves_of(recorded: Result, repeated: Result) -> Result:
    """Return a recorded outcome with the curves of the same run trained a second time.

    The two trainings differ by rounding. The provenance and the outcome of the second one are added
    to the provenance, under names that begin with `curves_`.
    """
    second = {
        **repeated.provenance,
        "state": repeated.state,
        "plateau": repr(repeated.plateau.time),
    }
    added = {f"curves_{name}": str(value) for name, value in second.items()}
    provenance = {**recorded.provenance, **added}
    return recorded._replace(curves=repeated.curves, provenance=provenance)


def count_devices(results: Iterable[Result]) -> str:
    """Return on which devices runs were trained, such as `12 runs on NVIDIA H200`."""
    devices = collections.Counter(str(result.provenance.get("device")) for result in results)
    return ", ".join(f"{count} runs on {device}" for device, count in sorted(devices.items()))
