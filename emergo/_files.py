"""Files that are either whole or not there."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ._errors import InputError


def output_folder(path: Path | str) -> Path:
    """Makes a folder and makes sure that it can be written to, before any work is done."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"{folder}: cannot write to this folder ({error.strerror}); choose another --out") from None
    return folder


@contextlib.contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """A temporary folder whose files move into `folder` one by one, by rename, when the block ends without an error.

    Whatever happens, `folder` holds only whole files: old ones or new ones. A JSON file vouches for the files beside it: an old
    one goes first and the new one comes last, so that it never stands beside files of another run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stage = Path(tempfile.mkdtemp(prefix=".emergo-", dir=folder))
    try:
        yield stage
        files = sorted(stage.iterdir(), key=lambda f: (f.suffix == ".json", f.name))
        for file in files:
            if file.suffix == ".json":
                (folder / file.name).unlink(missing_ok=True)
        for file in files:
            os.replace(file, folder / file.name)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
