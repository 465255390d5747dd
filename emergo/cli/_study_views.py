"""What the commands of `emergo study` show."""

from typing import TYPE_CHECKING, Any

from .._terminal import console, duration, memory, table

if TYPE_CHECKING:
    from ..studies import Estimate, Status, Study


def axes_words(study: "Study") -> str:
    words = [f"{name} x {len(values)}" for name, values in study.grid.items()]
    if study.zip:
        words.append(f"{' with '.join(study.zip)} x {len(next(iter(study.zip.values())))}")
    words += [f"{name} tuned x {len(values)}" for name, values in study.tune.items()]
    return ", ".join(words) or "one"


def print_estimate(expected: "Estimate", where: str) -> None:
    shown = table("program", "runs", "units", "at once", "memory", "time at most", left=("program",), wrap=("program",))
    for group in expected.groups:
        numbers = (str(group.runs), str(group.units), str(group.n_parallel))
        shown.add_row(group.what, *numbers, memory(group.bytes), duration(group.seconds))
    if expected.groups:
        console().print(shown)
    kind = f"{expected.devices} x {expected.platform.upper()}"
    most = f"at most about {duration(expected.seconds)}, if no run ends before its last step"
    print(f"{where} ({kind}): {most}; {memory(expected.bytes)}")


def counts(status: "Status") -> str:
    parts = [f"{status.reached} reached", f"{status.censored} censored", f"{status.failed} failed"]
    if status.trained:
        parts.insert(2, f"{status.trained} trained without a threshold")
    return f"{status.finished} of {status.runs} runs finished ({', '.join(parts)})"


def status_view(status: "Status", note: str = "") -> Any:
    """One line on the whole, one row per process at work, what is wrong, and a note."""
    from rich.console import Group
    from rich.text import Text

    line = f"{status.name}: {counts(status)}"
    if not status.complete:
        line += f", {status.training} in training, {status.waiting} waiting"
    if status.failures > status.failed:
        line += f"; {status.failures} failures, tried again"
    parts: list[Any] = [Text(line)]
    if status.workers:
        heads = ("unit", "host", "process", "job", "runs", "step", "loss", "steps/s", "left", "last sign")
        shown = table(*heads, left=("unit", "host"))
        for worker in status.workers:
            shown.add_row(*_worker_words(worker))
        parts.append(shown)
    parts += [Text(f"{path}: cannot be read ({why})", style="red") for path, why in status.broken.items()]
    if note:
        parts.append(Text(note))
    return Group(*parts)


def _worker_words(worker: dict[str, Any]) -> list[str]:
    def words(value: Any, form: str) -> str:
        return "-" if value is None else form.format(value)

    step = "-" if worker["step_min"] is None else f"{worker['step_min']}-{worker['step_max']}"
    runs = "compiling" if worker["total"] is None else f"{worker['done']} of {worker['total']}"
    left = "-" if worker["seconds_left"] is None else duration(worker["seconds_left"])
    first = [worker["unit"], str(worker["host"]), str(worker["pid"]), worker["job"] or "-", runs, step]
    return [*first, words(worker["loss"], "{:.3f}"), words(worker["rate"], "{:,.0f}"), left, f"{worker['age']:.0f} s ago"]
