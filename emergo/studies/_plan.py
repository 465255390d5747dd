"""From a study to the units that processes train, and back."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .._errors import InputError
from ..engine import Run, family
from ._claims import Claims
from ._folder import Plan, Planned, StudyFolder, Unit
from ._study import Study


def groups_of(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs that can share a program, in their order."""
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        groups.setdefault(family(run.config), []).append(run)
    return list(groups.values())


def make_plan(study: Study, before: Plan | None = None, folder: Path | str = "FOLDER") -> Plan:
    """The plan of a study. One that has grown keeps its units as they were and gets new ones for the new runs.

    `folder` is where the study is, for the message that this is another one.
    """
    known = {run.identity for run in before.runs} if before else set()
    wanted = {run.identity for run in study.runs}
    if not known <= wanted:
        raise InputError(
            f"{len(known - wanted)} of the {len(known)} runs of the study that is there are not in this one; "
            f"a study can grow, not shrink or change: `emergo study run {folder}` goes on with the one that is there; "
            f"for this one choose another folder"
        )
    units = list(before.units) if before else []
    for group in groups_of([run for run in study.runs if run.identity not in known]):
        for first in range(0, len(group), study.unit):
            members = group[first : first + study.unit]
            label = hashlib.sha256(" ".join(run.identity for run in members).encode()).hexdigest()[:12]
            units.append(Unit(label, [Planned(run.identity, run.seed, study.values_of(run)) for run in members]))
    if before is not None:  # values of the axes come from the runs, in case the axes are written in another order now
        values = {run.identity: study.values_of(run) for run in study.runs}
        units = [Unit(u.id, [r._replace(values=values[r.identity]) for r in u.runs]) for u in units]
    return Plan(study.data(), study.axes, units)


def open_study(folder: StudyFolder, study: Study) -> tuple[Plan, int]:
    """Puts a study into its folder, or lets the one that is there grow to it; says how many runs are new."""
    folder.prepare()
    with Claims(folder.claims).hold("plan"):
        before = folder.read() if folder.exists() else None
        plan = make_plan(study, before, folder.path)
        fresh = len(plan.runs) - (len(before.runs) if before else 0)
        if before is None or plan != before:
            folder.write(plan)
    return plan, fresh


def study_of(folder: StudyFolder, plan: Plan) -> tuple[Study, dict[str, Run]]:
    """The study of a plan, and its runs by identity."""
    study = Study.of(plan.study)
    runs = {run.identity: run for run in study.runs}
    lost = [run.identity for run in plan.runs if run.identity not in runs]
    if lost:
        raise InputError(
            f"{folder.file}: {len(lost)} of {len(plan.runs)} runs have another identity in this version of emergo; "
            f"use the version that made the study, or choose another folder"
        )
    return study, runs
