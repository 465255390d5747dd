"""`emergo view`: explore runs in a browser, locally and read-only."""

import contextlib
import dataclasses
import sys
from pathlib import Path

from tyro.conf import Positional

from ..core.errors import InputError
from ..core.terminal import counted, memory, print_json, say, show


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
            written = export_page(catalog, self.export, say)
            for note in written.pop("notes"):
                say(note)
            if self.json:
                return print_json(written)
            size = f"{counted(written['runs'], 'run')}, {memory(written['bytes'])}"
            return show(f"{size}; open {written['file']}")
        # A set without runs may get some, unless its files cannot be read.
        if not any(each.runs or not each.notes for each in catalog.sets().values()):
            why = "; ".join(catalog.notes) or "emergo study run puts a study into a folder"
            raise InputError(
                f"{self.folder}: no study, runs, records, figures or logs here ({why})"
            )
        # Ctrl-C is the normal way to stop.
        with contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as until_the_end:
            serve(catalog, self.port, lambda address: self._ready(address, until_the_end))

    def _ready(self, address: str, until_the_end: contextlib.ExitStack) -> None:
        if self.json:
            print_json({"address": address})
            sys.stdout.flush()
        else:
            say(f"{self.folder} is at {address} (Ctrl-C ends it)")
        if not self.no_browser:
            from ..view import browser_opened

            until_the_end.enter_context(browser_opened(address))
