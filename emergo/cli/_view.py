"""`emergo view`: explore runs in a browser, locally and read-only."""

import contextlib
import dataclasses
import sys
from pathlib import Path

from tyro.conf import Positional

from ..core.errors import InputError
from ..core.terminal import counted, memory, print_json, say


@dataclasses.dataclass(frozen=True)
class View:
    """Explore runs in the browser: curves, laws, single runs, and runs in training. Read-only."""

    # A folder of studies, runs, records, figures or logs of training, or one log.
    folder: Positional[Path]
    port: int = 8642  # Port on this machine; other machines cannot reach it.
    export: Path | None = None  # Write one HTML file that opens without a server, and exit.
    no_browser: bool = False  # Print the address without opening it.
    metric: str = "loss"  # In logs: the curve that shows that a run has learned ...
    below: float | None = None  # ... by falling to this value ...
    above: float | None = None  # ... or by rising to this one. Both can be changed on the page.
    json: bool = False  # Print one JSON object: the address, or a summary of the exported file.

    def run(self) -> None:
        from ..view import Catalog, Learned, export_page, serve

        if self.below is not None and self.above is not None:
            raise InputError("give one threshold: --below VALUE or --above VALUE")
        catalog = Catalog(self.folder, Learned(self.metric, self.below, self.above))
        if self.export is not None:
            written = export_page(catalog, self.export)
            notes = [*catalog.notes]
            for runs in catalog.sets().values():
                notes += runs.notes
            for note in dict.fromkeys(notes):
                say(note)
            if self.json:
                return print_json(written)
            size = f"{counted(written['runs'], 'run')}, {memory(written['bytes'])}"
            return print(f"{size}; open {written['file']}")
        if not catalog.sets():
            why = "; ".join(catalog.notes) or "emergo study run puts a study into a folder"
            raise InputError(
                f"{self.folder}: no study, runs, records, figures or logs here ({why})"
            )
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is the normal way to stop.
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
