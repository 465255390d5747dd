"""`python -m emergo.papers ID ...`: figures on a machine that lacks the packages of the command line."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from .._errors import InputError, StorageError, WorkerError
from .._terminal import fail, say
from ._make import add_figure_records, find_probe, make_figures, print_figure


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m emergo.papers", description=__doc__)
    parser.add_argument("id", nargs="*", help="figures to make, e.g. zucchet2025/fig3")
    parser.add_argument("--preset", default="paper", help="paper, laptop or smoke (default: paper)")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for figures and runs (default: out)")
    parser.add_argument("--seconds", type=float, help="stop after so many seconds; the same command goes on")
    parser.add_argument("--workers", type=int, default=1, help="how many processes train on one GPU (default: 1)")
    parser.add_argument("--fresh", action="store_true", help="train also what is recorded")
    words = "train also what is recorded without curves, of these parts (default: all)"
    parser.add_argument("--curves", nargs="*", metavar="PART", help=words)
    parser.add_argument("--probes", nargs="+", default=[], metavar="MODULE:NAME", help="measure these too of what is trained")
    parser.add_argument("--partial", action="store_true", help="draw what is there")
    parser.add_argument("--add-records", metavar="DIR", help="then add the runs in OUT to the records in DIR")
    parser.add_argument("--name", help="of the records to add to (default: the paper's)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    if not given.id and given.add_records is None:
        parser.error("name at least one figure, e.g. zucchet2025/fig3; emergo figures lists them")
    options: dict[str, Any] = {"fresh": given.fresh, "partial": given.partial, "seconds": given.seconds}
    options |= {"curves": given.curves, "workers": given.workers} | ({} if given.json else {"on_made": print_figure})
    try:
        options["probes"] = [find_probe(name) for name in given.probes]
        reports = make_figures(given.id, given.preset, given.out, **options)
        added = add_figure_records(given.out, given.name, to=given.add_records) if given.add_records else {}
    except InputError as error:
        fail(2, str(error))
    except (StorageError, WorkerError) as error:
        fail(1, str(error))
    except KeyboardInterrupt as stop:
        say("; ".join(["interrupted", *getattr(stop, "__notes__", ())]))
        os._exit(130)  # compiled programs may still be running; taking the interpreter down under them can crash
    if given.json:
        json.dump({"figures": reports, "added": added}, sys.stdout)
    elif added:
        print(f"records added: {added}")


if __name__ == "__main__":
    main()
