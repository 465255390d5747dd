"""Configuration of Sphinx. `docs/_site/build.py` writes the pages first."""

import sys
from pathlib import Path
from typing import Any

from docutils import nodes

from emergo import __version__

sys.path.insert(0, str(Path(__file__).parents[2]))
from docs._site.formulas import mathml

project = "emergo"
author = "The emergo authors"
release = __version__
html_title = f"emergo {release}"
copybutton_exclude = ".linenos, .gp, .go"
extensions = ["myst_nb", "sphinx_copybutton"]
exclude_patterns = ["files"]
html_theme = "furo"
html_favicon = "../../emergo/view/static/icon.svg"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = html_show_copyright = False
html_math_renderer = "mathml"
templates_path: list[str] = []
pygments_style = "friendly"
pygments_dark_style = "monokai"

myst_enable_extensions = ["attrs_inline", "colon_fence", "dollarmath"]
myst_heading_anchors = 4
myst_dmath_double_inline = True

nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_timeout = (
    900  # seconds of a cell: only what hangs should end here, also on a busy machine
)
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_output_stderr = "remove"  # how far training is


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(mathml(node.astext(), False))
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="math">{mathml(node.astext(), True)}</div>')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    """Write formulas as MathML, so that the site loads nothing from elsewhere."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
