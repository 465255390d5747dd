"""Draw the pictures of the gallery: every figure at the `paper` preset, from the recorded runs, as
small PNGs that are kept with the documentation. Drawing all of them takes minutes, most of it for
figures that integrate flows.

    python docs/_site/pictures.py                     draw missing pictures
    python docs/_site/pictures.py zucchet2025/fig3    draw these again
"""

import io
import sys
from pathlib import Path

import numpy as np
from matplotlib import pyplot
from PIL import Image

from emergo import InputError
from emergo.core.files import atomic_write
from emergo.core.plotting import style
from emergo.papers import FIGURES, figure

PICTURES = Path(__file__).parents[1] / "img" / "gallery"
# A figure is 7.2 inches wide.
DPI = 130
# The colours of a file with a palette: those that most pixels have, and a few for gradients.
FREQUENT = 192
SPREAD = 64


def picture(id: str) -> Path:
    """Return the path of the picture of a figure."""
    return PICTURES / f"{id.replace('/', '-')}.png"


def draw(id: str) -> None:
    """Draw a figure and write its picture."""
    made = figure(id)
    drawn = io.BytesIO()
    small = io.BytesIO()
    with style():
        made.plot.savefig(drawn, format="png", dpi=DPI, metadata={"Software": None})
    pyplot.close("all")
    with_palette(Image.open(drawn).convert("RGB")).save(small, format="png", optimize=True)
    atomic_write(picture(id), small.getvalue())


def with_palette(drawn: Image.Image) -> Image.Image:
    """Return an RGB image with 256 colours, which makes a small file.

    Quantization alone merges thin lines of similar colours. So the most frequent colours are kept
    exactly, and quantization chooses the others.
    """
    pixels = np.asarray(drawn).reshape(-1, 3)
    colours, places, counts = np.unique(pixels, axis=0, return_inverse=True, return_counts=True)
    frequent = colours[np.argsort(-counts)[:FREQUENT]]
    spread = np.reshape(drawn.quantize(SPREAD).getpalette() or [], (-1, 3))
    palette = np.concatenate([frequent, spread]).astype(int)
    nearest = [np.argmin(np.sum((palette - colour) ** 2, axis=1)) for colour in colours]
    small = Image.new("P", drawn.size)
    small.putpalette(palette.ravel().tolist())
    small.putdata(np.array(nearest)[places.ravel()].tolist())
    return small


def main(ids: list[str]) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    for id in ids or [id for id in FIGURES if not picture(id).exists()]:
        try:
            draw(id)
            print(f"{id}: {picture(id).stat().st_size / 1000:.0f} kB", flush=True)
        except InputError as error:  # names the missing runs
            print(f"{id}: no picture ({error})", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
