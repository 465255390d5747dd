"""Plans: how the runs of a study are split into units that processes train."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from ..core.json import digest
from ..store.claims import Claims
from ..store.folder import Plan, Planned, StudyFolder, Unit
from ..store.store import Store
from ..tasks import find_data
from ..training import (
    Config,
    Run,
    check_config,
    find_starts,
    groups_of,
    log_steps,
    probe_curves,
    save_starts,
)
from .description import build_config, describe_config, load_plugins
from .results import missing_parts

_STARTS = "starts"  # folder of a study with the parameters that its runs start from
_CORPORA = "corpora"  # folder of a study with the corpora of its tasks


def make_plan(
    runs: Sequence[Run],
    axes: Sequence[str] = (),
    study: Mapping[str, Any] | None = None,
    unit: int = 64,
    values_of: Callable[[Run], list[Any]] = lambda run: [],
    before: Plan | None = None,
) -> Plan:
    """Return the plan of some runs.

    **Arguments:**

    - `study`: the study as plain data.
    - `unit`: the most runs of a unit.
    - `values_of`: returns the values of the axes of a run.
    - `before`: an earlier plan, which grows: its units stay as they are, and new runs get new
      units.
    """
    before = before or Plan({}, [], [], [])
    configs: dict[Config, int] = {}
    for run in runs:
        configs.setdefault(run.config, len(configs))
    planned = {
        run.identity: Planned(run.identity, configs[run.config], run.seed, values_of(run))
        for run in runs
    }
    units = [Unit(u.id, [planned[run.identity] for run in u.runs]) for u in before.units]
    known = {run.identity for run in before.runs}
    for group in groups_of([run for run in runs if run.identity not in known]):
        for first in range(0, len(group), unit):
            members = [planned[run.identity] for run in group[first : first + unit]]
            units.append(Unit(digest(" ".join(run.identity for run in members), 12), members))
    described = list(map(describe_config, configs))
    since = {"since": before.study["since"]} if "since" in before.study else {}
    return Plan(dict(study or {}) | since, list(axes), described, units, before.key)


def open_plan(
    folder: StudyFolder,
    runs: Sequence[Run],
    axes: Sequence[str] = (),
    study: Mapping[str, Any] | None = None,
    unit: int = 64,
    values_of: Callable[[Run], list[Any]] = lambda run: [],
    say: Callable[[str], None] = lambda line: None,
) -> tuple[Plan, int]:
    """Write the plan of some runs into a folder.

    An existing plan of some of these runs, and no others, grows, unless it belongs to a study of
    another name. Finished runs that lack requested curves or parameters are set aside and will be
    trained again. Damaged plans are moved away.

    **Arguments:** as for `make_plan`, and `say`, which is called with one line about runs that are
    set aside, plans that are moved and corpora that are read more than once.

    **Returns:** the plan, and how many of the runs are in no earlier plan of the folder.
    """
    folder.prepare(say)
    wanted = {run.identity for run in runs}
    with Claims(folder.claims).hold("plan"):
        folder.move_damaged_plans(say)
        plans = folder.read() if folder.exists() else []
        known = {run.identity for plan in plans for run in plan.runs}
        first_new = next((run for run in runs if run.identity not in known), None)
        if first_new is not None:
            check_config(first_new.config)  # raises an error before anything is written
            _say_epochs([run.config for run in runs], say)
        name = (study or {}).get("name")
        within = [
            plan
            for plan in plans
            if ("task" not in plan.study or plan.study.get("name") == name)
            and plan.axes == list(axes)
            and {run.identity for run in plan.runs} <= wanted
        ]
        before = max(within, key=lambda plan: len(plan.runs), default=None)
        plan = make_plan(runs, axes, study, unit, values_of, before)
        save_inputs(folder.path, [run.config for run in runs])
        if plan != before:
            plan = folder.write(plan)
        _set_incomplete_aside(Store(folder.runs), runs, plan.study.get("keep"), say)
    return plan, len(wanted - known)


def grow_plan(folder: StudyFolder, plan: Plan, runs: Sequence[Run], unit: int = 64) -> Plan:
    """Add runs to a plan of a folder; runs that other processes have added to it are kept."""
    with Claims(folder.claims).hold("plan"):
        now = next((other for other in folder.read() if other.key == plan.key), plan)
        every = {**runs_of(now, folder.path), **{run.identity: run for run in runs}}
        grown = make_plan(list(every.values()), now.axes, now.study, unit, before=now)
        return now if grown == now else folder.write(grown)


def _say_epochs(configs: Iterable[Config], say: Callable[[str], None]) -> None:
    """Say that runs read a corpus more than once: one line about those that do so most often."""
    kinds = {(c.task, c.batch, c.steps) for c in configs if c.task.has_corpus}
    epochs = [(steps, task.epoch(batch), task) for task, batch, steps in kinds]
    repeated = [(steps / epoch, steps, epoch, task) for steps, epoch, task in epochs if epoch]
    times, steps, epoch, task = max(repeated, key=lambda row: row[0], default=(0, 0, 0, None))
    if times > 1:
        say(
            f"the corpus of {type(task).__name__} is read {times:.2f} times in {steps:,} steps; "
            f"without repetition it lasts for {epoch:,} steps"
        )


def _set_incomplete_aside(
    store: Store, runs: Sequence[Run], keep: Any, say: Callable[[str], None]
) -> None:
    """Set finished runs aside that lack curves of their probes, or parameters."""
    finished = [run for run in runs if (keep or run.config.probes) and run.identity in store]
    for group in groups_of(finished):
        curves = probe_curves(group[0].config)
        names: dict[str, None] = {}
        count = 0
        for run in group:
            missing = missing_parts(store, run, curves, steps_to_keep(keep, [run]))
            if missing:
                store.set_aside(run.identity)
                names |= dict.fromkeys(missing)
                count += 1
        if count:
            say(
                f"{store.folder}: {count} finished runs lack {', '.join(names)}; they are set "
                f"aside and trained again"
            )


def save_inputs(folder: Path, configs: Iterable[Config]) -> None:
    """Write the parameters that runs start from, and the corpora of their tasks, into a folder."""
    configs = list(configs)
    starts = [config.start for config in configs if config.start is not None]
    save_starts(folder / _STARTS, list(dict.fromkeys(starts)))
    for task in dict.fromkeys(config.task for config in configs if config.task.has_corpus):
        task.save_data(folder / _CORPORA)


def find_inputs(folder: Path) -> None:
    """Make what `save_inputs` has written known to this process."""
    find_starts(folder / _STARTS)
    find_data(folder / _CORPORA)


def steps_to_keep(keep: Any, runs: Sequence[Run]) -> tuple[int, ...] | None:
    """Return the steps at which a study keeps the parameters of these runs; None for no steps."""
    if not keep:
        return None
    config = max((run.config for run in runs), key=lambda config: config.steps)
    return log_steps(config.steps, config.task.eval_every) if keep is True else tuple(keep)


def runs_of(plan: Plan, where: Path) -> dict[str, Run]:
    """Build the runs of a plan, by identity. This imports the plugins that the study names.

    Raises an `InputError` that names the folder `where` if a run has another identity than when it
    was planned, because emergo or a plugin has changed.
    """
    load_plugins(plan.plugins)
    find_inputs(where)
    configs = [build_config(config) for config in plan.configs]
    runs = {planned.identity: Run(configs[planned.config], planned.seed) for planned in plan.runs}
    for identity, run in runs.items():
        if run.identity != identity:
            raise InputError(
                f"{where}: the run {identity} has another identity with this version of emergo or "
                f"of its plugins; use the version that made the study, or choose another folder"
            )
    return runs
