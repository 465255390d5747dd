"""Warm starts: parameters, and on request the whole state of training, from which a run begins.

The identity of a run covers the content that it starts from, not the place where this was found. A
`Start` holds only digests. The arrays are found by their digest: in memory, in the file that the
user named, or in the folder of the study, which gets a copy so that other processes find it.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from ..core.errors import InputError
from ..core.files import atomic_write, half_of_memory, own_folder, regular_file
from ..core.pytree import Pytree

STATE = "state/"
"""Prefix of arrays that are not parameters: the state of the optimizer, of schedules, the step."""
Arrays = Mapping[str, np.ndarray]
_known: dict[str, Arrays | Path] = {}


class Start(Pytree):
    """The parameters that runs start from, by a digest of their content.

    [`emergo.resume`][] and the argument `start` of a study make one from a trained run, from
    several, or from a file of parameters.

    **Arguments:**

    - `digest`: of the arrays that every run starts from.
    - `by_seed`: pairs of a seed and the digest of the arrays for runs with that seed.
    - `resume`: continue the training: also restore the state of the optimizer and of schedules, and
      the step.
    """

    digest: str = ""
    by_seed: tuple[tuple[int, str], ...] = ()
    resume: bool = False

    def of(self, seed: int) -> "Start":
        """Return the start of the run with a seed."""
        if self.digest:
            return self
        digests = dict(self.by_seed)
        if seed not in digests:
            seeds = ", ".join(map(str, digests))
            raise InputError(f"start has no parameters for seed {seed}, only for seeds {seeds}")
        return Start(digests[seed], resume=self.resume)

    @property
    def digests(self) -> list[str]:
        return [self.digest] if self.digest else [digest for _, digest in self.by_seed]


def start_from(arrays: Arrays, resume: bool = False) -> Start:
    """Return the start of runs from arrays by name."""
    if resume and f"{STATE}step" not in arrays:
        raise InputError(
            "there is no state of the optimizer with these parameters: it is kept at the end of "
            "runs that are trained with `keep`; leave out `resume` to start with the parameters"
        )
    kept = {name: x for name, x in arrays.items() if resume or not name.startswith(STATE)}
    digest = _digest(kept)
    _known[digest] = kept
    return Start(digest, resume=resume)


def read_start(path: Path | str, resume: bool = False) -> Start:
    """Return the start of runs from a file of parameters in the format of safetensors."""
    return start_from(read_safetensors(Path(path)), resume)


def read_safetensors(path: Path) -> Arrays:
    """Return the arrays of a file by name."""
    from safetensors import SafetensorError, safe_open

    try:
        regular_file(path, half_of_memory())
        with safe_open(path, "numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, ValueError, SafetensorError) as error:
        words = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise InputError(f"{path}: cannot be read as parameters ({words})") from None


def _digest(arrays: Arrays) -> str:
    hashed = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        hashed.update(f"{name} {array.dtype} {array.shape}\n".encode())
        hashed.update(np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()[:32]


def arrays_of(start: Start) -> Arrays:
    """Return the arrays with the digest of a start."""
    found = _known.get(start.digest)
    if found is None:
        raise InputError(
            f"start: the parameters {start.digest} are not known in this process; give their file, "
            f"or the folder of the study that started from them"
        )
    if isinstance(found, Path):
        arrays = read_safetensors(found)
        if _digest(arrays) != start.digest:
            raise InputError(f"{found}: was damaged or changed; it is not {start.digest}")
        found = _known[start.digest] = arrays
    return found


def save_starts(folder: Path, starts: Sequence[Start]) -> None:
    """Write the arrays of starts to a folder, for other processes and later calls."""
    from safetensors.numpy import save

    for digest in dict.fromkeys(digest for start in starts for digest in start.digests):
        path = folder / f"{digest}.safetensors"
        if not path.exists():
            own_folder(folder)
            arrays = arrays_of(Start(digest))
            atomic_write(path, save({n: np.asarray(x, order="C") for n, x in arrays.items()}))


def find_starts(folder: Path) -> None:
    """Make the arrays in a folder known to this process by their digests."""
    for path in folder.glob("*.safetensors"):
        _known.setdefault(path.stem, path)


def named_leaves(tree: PyTree) -> dict[str, Any]:
    """Return the arrays of a pytree by their paths, such as `layers.0.query.weight`."""
    return {
        jax.tree_util.keystr(path, simple=True, separator=".") or "params": leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
