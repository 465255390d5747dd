"""What the commands of `emergo study` show."""

from typing import TYPE_CHECKING, Any

from .._terminal import console, duration, memory, plateau_words, table

if TYPE_CHECKING:
    from ..studies import Estimate, Status, Study


def axes_words(study: "Study") -> str:
    words = [f"{name} x {len(values)}" for name, values in study.grid.items()]
    if study.zip:
        words.append(f"{' with '.join(study.zip)} x {len(next(iter(study.zip.values())))}")
    words += [f"{name} tuned x {len(values)}" for name, values in study.tune.items()]
    return ", ".join(words) or "one"


def print_estimate(found: "Estimate", where: str) -> None:
    made = table("group", "runs", "units", "together", "memory", "time at most", left=("group",), wrap=("group",))
    for group in found.groups:
        numbers = (str(group.runs), str(group.units), str(group.together))
        made.add_row(group.what, *numbers, memory(group.bytes), duration(group.seconds))
    if found.groups:
        console().print(made)
    kind = f"{found.devices} x {found.platform.upper()}"
    most = f"at most about {duration(found.seconds)}, if no run ends before its last step"
    print(f"{where} ({kind}): {most}; {memory(found.bytes)}")


def counts(status: "Status") -> str:
    parts = [f"{status.reached} reached", f"{status.censored} censored", f"{status.failed} failed"]
    if status.trained:
        parts.insert(2, f"{status.trained} trained without a threshold")
    return f"{status.finished} of {status.runs} runs finished ({', '.join(parts)})"


def status_view(status: "Status", note: str = "") -> Any:
    """One line on the whole, a row a process at work, what is wrong, and a note."""
    from rich.console import Group
    from rich.text import Text

    line = f"{status.name}: {counts(status)}"
    if not status.complete:
        line += f", {status.training} in training, {status.waiting} waiting"
    if status.failures > status.failed:
        line += f"; {status.failures} failures, tried again"
    parts: list[Any] = [Text(line)]
    if status.workers:
        heads = ("unit", "host", "process", "job", "runs", "step", "loss", "steps/s", "left", "seen")
        made = table(*heads, left=("unit", "host"))
        for worker in status.workers:
            made.add_row(*_worker_words(worker))
        parts.append(made)
    parts += [Text(f"{place}: cannot be read ({why})", style="red") for place, why in status.broken.items()]
    if note:
        parts.append(Text(note))
    return Group(*parts)


def _worker_words(worker: dict[str, Any]) -> list[str]:
    def said(value: Any, form: str) -> str:
        return "-" if value is None else form.format(value)

    step = "-" if worker["step_min"] is None else f"{worker['step_min']}-{worker['step_max']}"
    runs = "compiling" if worker["total"] is None else f"{worker['done']} of {worker['total']}"
    left = "-" if worker["seconds_left"] is None else duration(worker["seconds_left"])
    words = [worker["unit"], str(worker["host"]), str(worker["pid"]), worker["job"] or "-", runs, step]
    return [*words, said(worker["loss"], "{:.3f}"), said(worker["rate"], "{:,.0f}"), left, f"{worker['age']:.0f} s ago"]


def cell_table(cells: list[dict[str, Any]], axes: list[str]) -> Any:
    made = table(*axes, "runs", "plateau", "min-max", "censored", "failed")
    for cell in cells:
        values = [f"{cell[axis]:g}" if isinstance(cell[axis], float | int) else str(cell[axis]) for axis in axes]
        runs = f"{cell['runs']} of {cell['planned']}"
        made.add_row(*values, runs, *plateau_words(cell), str(cell["censored"]), str(cell["failed"]))
    return made
