"""Draws the pictures of the gallery: every figure at the `paper` preset, from the runs that come
with the package, as small PNGs that are kept with the documentation. The site is built in seconds;
drawing them all takes minutes, most of them for the figures that integrate flows.

    python docs/_site/pictures.py                     those that are not there yet
    python docs/_site/pictures.py zucchet2025/fig3    these, anew
"""

import io
import sys
from pathlib import Path

from matplotlib import pyplot
from PIL import Image

from emergo import InputError
from emergo.core.files import atomic_write
from emergo.core.plotting import style
from emergo.papers import FIGURES, figure

PICTURES = Path(__file__).parents[1] / "img" / "gallery"
# a figure is 7.2 inches wide; few colours make a small file of a plot
DPI = 130
COLOURS = 96


def picture(id: str) -> Path:
    """Where the picture of a figure is kept."""
    return PICTURES / f"{id.replace('/', '-')}.png"


def draw(id: str) -> None:
    made = figure(id)
    drawn = io.BytesIO()
    small = io.BytesIO()
    with style():
        made.plot.savefig(drawn, format="png", dpi=DPI, metadata={"Software": None})
    pyplot.close("all")
    Image.open(drawn).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(
        small, format="png", optimize=True
    )
    atomic_write(picture(id), small.getvalue())


def main(ids: list[str]) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    for id in ids or [id for id in FIGURES if not picture(id).exists()]:
        try:
            draw(id)
            print(f"{id}: {picture(id).stat().st_size / 1000:.0f} kB", flush=True)
        except InputError as error:  # of which runs are missing
            print(f"{id}: no picture ({error})", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
