"""How Sphinx builds the site; `docs/_site/build.py` puts the pages together first."""

import re
from typing import Any

from docutils import nodes
from docutils.utils.math import latex2mathml

from emergo import __version__

project = "emergo"
author = "The emergo authors"
release = __version__
html_title = f"emergo {release}"
extensions = ["myst_nb"]
exclude_patterns = ["files"]
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = html_show_copyright = False
html_math_renderer = "mathml"
templates_path: list[str] = []
pygments_style = "friendly"
pygments_dark_style = "monokai"

myst_enable_extensions = ["dollarmath", "colon_fence"]
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


def _mathml(tex: str, block: bool) -> str:
    """Sizes of brackets, which docutils does not know, are left to the browser."""
    known = re.sub(r"\\dots\b", r"\\ldots", re.sub(r"\\[bB]igg?[lr]?(?![a-zA-Z])", "", tex))
    return str(latex2mathml.tex2mathml(known, as_block=block))


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(_mathml(node.astext(), False))
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="math">{_mathml(node.astext(), True)}</div>')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    """Formulas become MathML, which browsers draw themselves: the site loads nothing from
    elsewhere."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
