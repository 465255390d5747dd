"""Allow-lists for the strings of a study that become part of an sbatch script.

submitit writes each option as a comment, `#SBATCH --name=value`, and quotes the value. A newline in
it would end the comment, and the rest would run as shell. So every string is compared with a list
of characters before it gets there.
"""

import re
from typing import Any

from ..core.errors import InputError

# Values of options: names of partitions and accounts, `gpu:a100:2`, `n[1-4]`, `[a100|v100]&nvme`.
_VALUE = re.compile(r"[A-Za-z0-9 _.,:=@%+/*&|()\[\]~^-]*")
# Names that people choose: of the study and of its folder. Letters of any alphabet; no %, which
# Slurm replaces in the names of files.
_NAME = re.compile(r"[\w .,:=@+/()~^\[\]-]*")
_SHELL = re.compile(r"[\t -~]*")  # lines of `setup`, which are shell on purpose and announced

OPTIONS = frozenset(
    (
        *("acctg-freq", "begin", "cluster-constraint", "clusters", "comment", "constraint"),
        *("contiguous", "core-spec", "cores-per-socket", "cpu-freq", "cpus-per-gpu", "deadline"),
        *("delay-boot", "dependency", "distribution", "exclude", "exclusive", "extra-node-info"),
        *("gpu-bind", "gpu-freq", "gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task"),
        *("gres", "gres-flags", "hint", "hold", "licenses", "mail-type", "mail-user", "mcs-label"),
        *("mem", "mem-bind", "mem-per-cpu", "mem-per-gpu", "mincpus", "network", "nice"),
        *("no-kill", "no-requeue", "nodelist", "ntasks-per-core", "ntasks-per-gpu", "overcommit"),
        *("oversubscribe", "power", "prefer", "priority", "profile", "qos", "reboot", "requeue"),
        *("reservation", "sockets-per-node", "spread-job", "switches", "thread-spec"),
        *("threads-per-core", "time-min", "tmp", "use-min-nodes", "wckey"),
    )
)
"""Options of sbatch that ask for resources. The others decide which code runs, in which
environment, or where its output is written: they need a line of `setup`, which is announced."""


def check_value(where: str, text: str) -> None:
    """Raise `InputError` if a text cannot be the value of an option of sbatch."""
    if not _VALUE.fullmatch(text):
        raise InputError(
            f"{where} {text!r:.80} may only have letters, digits, spaces and "
            f"_ . , : = @ % + / * & | ( ) [ ] ~ ^ -"
        )


def check_option(where: str, name: Any, value: Any) -> None:
    """Raise `InputError` if an option of sbatch cannot be part of a script."""
    if not isinstance(name, str) or name.replace("_", "-") not in OPTIONS:
        raise InputError(
            f"{where} may not have the option {name!r:.80}, only such that ask for resources, e.g. "
            f"qos; write another one as a line of setup: '#SBATCH --name=value'"
        )
    if value is not True and (isinstance(value, bool) or not isinstance(value, str | int | float)):
        raise InputError(f"{where} {name} {value!r:.80} may be a text, a number or true")
    check_value(f"{where} {name}", str(value))


def check_shell(where: str, line: str) -> None:
    """Raise `InputError` if a text is not one line of printable ASCII characters."""
    if not _SHELL.fullmatch(line):
        raise InputError(
            f"{where} {line!r:.80} may only have printable ASCII characters, one line each"
        )


def check_name(where: str, text: str) -> None:
    """Raise `InputError` if a name cannot be part of a script."""
    if not _NAME.fullmatch(text):
        raise InputError(
            f"{where} {text!r:.200} may only have letters, digits, spaces and "
            f"_ . , : = @ + / ( ) [ ] ~ ^ - on Slurm; choose another one"
        )
