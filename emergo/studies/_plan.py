"""From runs to the units that processes train, and back."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._errors import InputError
from .._identity import canonical
from .._json import digest
from ..engine import Config, Run, groups_of, log_steps, probe_curves
from ..engine._check import check_config
from ._claims import Claims
from ._description import build_config, load_plugins
from ._folder import Plan, Planned, StudyFolder, Unit
from ._store import Store
from ._version_1 import is_version_1, migrate


def make_plan(
    runs: Sequence[Run],
    axes: Sequence[str] = (),
    study: Mapping[str, Any] | None = None,
    unit: int = 64,
    values_of: Callable[[Run], list[Any]] = lambda run: [],
    before: Plan | None = None,
) -> Plan:
    """The plan of runs. One that has grown from `before` keeps its units as they were and gets new ones for the new runs."""
    before = before or Plan({}, [], [], [])
    configs: dict[Config, int] = {}
    for run in runs:
        configs.setdefault(run.config, len(configs))
    planned = {run.identity: Planned(run.identity, configs[run.config], run.seed, values_of(run)) for run in runs}
    units = [Unit(u.id, [planned[run.identity] for run in u.runs]) for u in before.units]
    known = {run.identity for run in before.runs}
    for group in groups_of([run for run in runs if run.identity not in known]):
        for first in range(0, len(group), unit):
            members = [planned[run.identity] for run in group[first : first + unit]]
            units.append(Unit(digest(" ".join(run.identity for run in members), 12), members))
    # With all their probes: other processes measure what this one would.
    described = [c.describe() | ({"probes": canonical(c.probes)} if c.probes else {}) for c in configs]
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
    """Puts runs into a folder as a plan, and says how many of them are new to it.

    Where there is a plan of some of these runs and no others, it grows, unless it is of a study with another name. Finished
    runs that lack what is asked for now are set aside, to be trained again, and plans that are damaged are moved aside; `say`
    is called with a line on them.
    """
    folder.prepare(say)
    wanted = {run.identity for run in runs}
    with Claims(folder.claims).hold("plan"):
        if is_version_1(folder.path):
            migrate(folder.path)
        folder.move_damaged_plans(say)
        plans = folder.read() if folder.exists() else []
        known = {run.identity for plan in plans for run in plan.runs}
        for run in [run for run in runs if run.identity not in known][:1]:  # before anything is written
            check_config(run.config)
        name = (study or {}).get("name")
        same = [plan for plan in plans if "task" not in plan.study or plan.study.get("name") == name]  # no other study's
        within = [plan for plan in same if plan.axes == list(axes) and {run.identity for run in plan.runs} <= wanted]
        before = max(within, key=lambda plan: len(plan.runs), default=None)
        plan = make_plan(runs, axes, study, unit, values_of, before)
        if plan != before:
            plan = folder.write(plan)
        _set_aside(Store(folder.runs), runs, plan.study.get("keep"), say)
    return plan, len(wanted - known)


def grow_plan(folder: StudyFolder, plan: Plan, runs: Sequence[Run], unit: int = 64) -> Plan:
    """Adds runs to a plan that is in a folder. What other processes have added to it meanwhile stays."""
    with Claims(folder.claims).hold("plan"):
        now = next((other for other in folder.read() if other.key == plan.key), plan)
        every = {**runs_of(now, folder.path), **{run.identity: run for run in runs}}
        grown = make_plan(list(every.values()), now.axes, now.study, unit, before=now)
        return now if grown == now else folder.write(grown)


def _set_aside(store: Store, runs: Sequence[Run], keep: Any, say: Callable[[str], None]) -> None:
    """Takes out of the store what lacks curves of its probes, or parameters, that are asked for now."""
    for group in groups_of([run for run in runs if (keep or run.config.probes) and run in store]):
        curves = probe_curves(group[0].config)
        lacking = {run: names for run in group if (names := store.lacks(run, curves, steps_to_keep(keep, [run])))}
        for run in lacking:
            store.set_aside(run.identity)
        if lacking:
            names = ", ".join(dict.fromkeys(name for lacks in lacking.values() for name in lacks))
            say(f"{store.folder}: {len(lacking)} finished runs lack {names}; they are set aside and trained again")


def steps_to_keep(keep: Any, runs: Sequence[Run]) -> tuple[int, ...] | None:
    """The steps at which a study keeps the parameters of these runs; None: nowhere."""
    if not keep:
        return None
    config = max((run.config for run in runs), key=lambda config: config.steps)
    return log_steps(config.steps, config.task.eval_every) if keep is True else tuple(keep)


def runs_of(plan: Plan, where: object) -> dict[str, Run]:
    """The runs of a plan by identity. Imports the plugins that the study names."""
    load_plugins(plan.plugins)
    configs = [build_config(config) for config in plan.configs]
    runs = {planned.identity: Run(configs[planned.config], planned.seed) for planned in plan.runs}
    for identity, run in runs.items():
        if run.identity != identity:
            what = f"the run {identity} has another identity with this version of emergo or of its plugins"
            raise InputError(f"{where}: {what}; use the version that made the study, or choose another folder")
    return runs
