"""The `emergo` command: a thin door to the rooms behind it, one module per command.

Standard output carries results (with `--json`, one JSON object and nothing else); progress and messages go to standard error.
Exit status: 0, 1 for a failure, 2 for wrong input, 130 for an interrupt.

A command is a dataclass: its fields are the options, and the comment or text beside a field is its help. The rooms are imported
inside the commands: `emergo --help` should not wait for JAX.
"""

from ._main import main

__all__ = ["main"]
