"""Turn formulas from TeX into MathML, which browsers draw without any script.

Docutils does the conversion. It reads digits as one number, but TeX reads one token as an argument:
`\\frac12 n` is one half times n in TeX, and 12/n for Docutils. So unbraced arguments get braces
first.
"""

import re
import xml.etree.ElementTree as ET

from docutils.utils.math import latex2mathml

ARGUMENTS = {"frac": 2, "tfrac": 2, "dfrac": 2, "binom": 2, "sqrt": 1, "^": 1, "_": 1}
"""How many arguments follow a command or a script mark."""
_TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|\s+|.", re.DOTALL)
# Docutils knows large brackets only with a side, such as \bigl.
_SIZES = re.compile(r"\\([bB]igg?)\s*([()\[\]])")


# Vertical space between rows.
_ROW_SPACE = re.compile(r"(?<=\\\\)\[[^\]]*\]")
_ACCENTS = set("˙~ˆ¯‾¨→")
_NAMESPACE = "http://www.w3.org/1998/Math/MathML"


def mathml(tex: str, block: bool) -> str:
    """Return the MathML of a formula; `block` is True for a formula on its own line."""
    sided = _SIZES.sub(lambda m: rf"\{m[1]}{'l' if m[2] in '([' else 'r'}{m[2]}", tex)
    known = re.sub(r"\\dots(?![a-zA-Z])", r"\\ldots", _ROW_SPACE.sub("", sided))
    text = latex2mathml.tex2mathml(braced(known), as_block=block)
    return _lower_scripts(text.replace("&ApplyFunction;", "\u2061"))


def _lower_scripts(text: str) -> str:
    r"""Move subscripts of accented letters to the side.

    Docutils writes `\dot x_k` as one element with the dot above `x` and `k` below it.
    """
    ET.register_namespace("", _NAMESPACE)
    root = ET.fromstring(text)
    for element in root.iter(f"{{{_NAMESPACE}}}munderover"):
        base, below, above = element
        if above.text in _ACCENTS:
            element.tag = f"{{{_NAMESPACE}}}msub"
            accented = ET.Element(f"{{{_NAMESPACE}}}mover", {"accent": "true"})
            accented.extend([base, above])
            element[:] = [accented, below]
    return ET.tostring(root, encoding="unicode")


def braced(tex: str) -> str:
    """Put braces around arguments that TeX reads as single tokens: `\\frac12` to `\\frac{1}{2}`."""
    tokens = _TOKEN.findall(tex)
    done = []
    place = 0
    while place < len(tokens):
        token = tokens[place]
        place += 1
        done.append(token)
        for _ in range(ARGUMENTS.get(token.removeprefix("\\"), 0)):
            while place < len(tokens) and tokens[place].isspace():
                place += 1
            # An optional argument stays as it is; a command with arguments is read in its turn.
            if place == len(tokens) or tokens[place].removeprefix("\\") in {"[", *ARGUMENTS}:
                break
            if tokens[place] == "{":
                # Copy a group as it is, and brace what is inside it.
                end = _end_of_group(tokens, place)
                done += ["{", braced("".join(tokens[place + 1 : end])), "}"]
                place = end + 1
            else:
                # One token, or a command such as \mathrm with the group that follows it.
                end = place
                if tokens[place].startswith("\\") and tokens[place + 1 : place + 2] == ["{"]:
                    end = _end_of_group(tokens, place + 1)
                done += ["{", *tokens[place : end + 1], "}"]
                place = end + 1
    return "".join(done)


def _end_of_group(tokens: list[str], start: int) -> int:
    """Return the place of the brace that closes the group at `start`."""
    depth = 0
    for place in range(start, len(tokens)):
        depth += (tokens[place] == "{") - (tokens[place] == "}")
        if depth == 0:
            return place
    raise ValueError(f"a brace is not closed in {''.join(tokens)!r}")
