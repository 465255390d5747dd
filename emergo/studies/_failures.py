"""Why runs failed: one small file for each time, so that it is known how often. Needs neither JAX nor pandas.

The tries of a run are numbered from 0. A try that is repeated after an interruption has the number it had, so that an
interruption does not count as a failure.
"""

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .._files import as_storage_error, atomic_write


class Failures:
    """The failures of the runs of a study."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _path(self, identity: str, number: int) -> Path:
        return self.folder / f"{identity}.{number}.json"

    def note(self, identity: str, number: int, reason: str, kind: str, **more: Any) -> None:
        """Records that try `number` of a run failed. `kind` is `"loss"` or `"memory"`."""
        content = {"identity": identity, "try": number, "kind": kind, "reason": reason, "when": time.time()} | more
        atomic_write(self._path(identity, number), json.dumps(content) + "\n")

    def recorded(self, identity: str, number: int) -> bool:
        return self._path(identity, number).exists()

    def read(self, identity: str, number: int) -> dict[str, Any]:
        """What was recorded; empty where there is nothing that can be read."""
        try:
            content = json.loads(self._path(identity, number).read_bytes())
            return content if isinstance(content, dict) else {}
        except (OSError, ValueError):
            return {}

    def counts(self) -> dict[str, int]:
        """How often each run has failed."""
        found: dict[str, int] = {}
        try:
            names: Iterable[str] = os.listdir(self.folder)
        except OSError:
            return {}
        for name in names:
            if name.endswith(".json") and not name.startswith("."):
                identity = name.partition(".")[0]
                found[identity] = found.get(identity, 0) + 1
        return found

    def forget(self, identity: str) -> None:
        """Lets a run begin anew."""
        with as_storage_error(self.folder):
            for path in self.folder.glob(f"{identity}.*.json"):
                path.unlink(missing_ok=True)
