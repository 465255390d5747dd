"""`emergo view`: the explorer, on this machine and read-only."""

import contextlib
import dataclasses
import sys
from pathlib import Path

from tyro.conf import Positional

from .._errors import InputError
from .._terminal import counted, memory, print_json, say


@dataclasses.dataclass(frozen=True)
class View:
    """Look at runs in the browser: curves, laws, one run, what trains now. Reads only."""

    folder: Positional[Path]  # A folder of studies, runs, records or figures; may be in training.
    port: int = 8642  # Port on this machine; other machines cannot reach it.
    export: Path | None = None  # Write one HTML file that opens without a server, and end.
    no_browser: bool = False  # Print the address without opening it.
    json: bool = False  # Print one JSON object: the address, or what was exported.

    def run(self) -> None:
        from ..view import Catalog, export_page

        catalog = Catalog(self.folder)
        if self.export is not None:
            written = export_page(catalog, self.export)
            for note in dict.fromkeys((*catalog.notes, *(note for runs in catalog.sets().values() for note in runs.notes))):
                say(note)
            if self.json:
                return print_json(written)
            return print(f"{counted(written['runs'], 'run')}, {memory(written['bytes'])}; open {written['file']}")
        if not catalog.sets():
            why = "; ".join(catalog.notes) or "a study is put into a folder by running it"
            raise InputError(f"{self.folder}: no study, runs, records or figures here ({why})")
        from ..view._serve import serve

        with contextlib.suppress(KeyboardInterrupt):  # which is how it ends
            serve(catalog, self.port, self._ready)

    def _ready(self, address: str) -> None:
        if self.json:
            print_json({"address": address})
            sys.stdout.flush()
        else:
            say(f"{self.folder} is at {address}; Ctrl-C ends it")
        if not self.no_browser:
            import webbrowser

            with contextlib.suppress(webbrowser.Error):
                webbrowser.open(address)
