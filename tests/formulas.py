"""Compare a formula with the MathML that the site draws.

The source is parsed here by the rules of TeX, and the MathML by its own structure. Both become
nested tuples, which must be equal. Named symbols, such as `\\alpha`, count as one symbol each.
"""

import re
import unicodedata
import xml.etree.ElementTree as ET

from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin

from docs._site.formulas import mathml

SYMBOL = "•"
FRACTIONS = {"frac", "tfrac", "dfrac"}
ACCENTS = {"hat", "tilde", "bar", "dot", "ddot", "vec", "overline", "underbrace"}
FONTS = {"mathrm", "mathbf", "mathbb", "mathcal", "operatorname", "text", "textstyle", "boldsymbol"}
WORDS = {"log", "exp", "max", "min", "sin", "cos", "sinh", "cosh", "tanh", "ln", "lim", "arg", "Pr"}
SPACES = {",", ";", ":", "!", " ", "quad", "qquad", "\\", "displaystyle", "textstyle"}
SIZES = re.compile(r"(left|right|[bB]igg?[lr]?)")
TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|\S", re.DOTALL)


def flat(items):
    """Return a sequence without nesting of plain groups."""
    done = []
    for item in items:
        done += flat(item) if isinstance(item, list) else [item]
    return done


class Tex:
    """A parser for the formulas of the docs."""

    def __init__(self, text):
        for wide, plain in {r"\begin{pmatrix}": "(", r"\end{pmatrix}": ")"}.items():
            text = text.replace(wide, plain)
        text = text.replace(r"\begin{cases}", r"\{")
        text = re.sub(r"\\(begin|end)\{\w+\*?\}(\{[lcr]+\})?", " ", text)
        text = re.sub(r"(?<=\\\\)\[[^\]]*\]", "", text)
        self.tokens = TOKEN.findall(text.replace("&", " "))
        self.place = 0

    def group(self, *ends):
        items = []
        while self.place < len(self.tokens) and self.tokens[self.place] not in ends:
            token = self.tokens[self.place]
            if token in "^_":
                self.script(items)
            else:
                items.append(self.one())
        self.place += 1
        return flat(items)

    def script(self, items):
        marks = {}
        base = items.pop() if items else []
        while self.place < len(self.tokens) and self.tokens[self.place] in "^_":
            mark = self.tokens[self.place]
            self.place += 1
            marks[mark] = tuple(flat([self.one()]))
        if isinstance(base, list) and base:
            *before, base = base  # a word: the script is at its end, but belongs to all of it
            items.append(before)
        items.append(("script", base, marks.get("_", ()), marks.get("^", ())))

    def one(self):
        token = self.tokens[self.place]
        self.place += 1
        if token == "{":
            return self.group("}")
        if not token.startswith("\\"):
            return [] if token in "'~" else token
        name = token[1:]
        if name in FRACTIONS:
            return ("frac", tuple(flat([self.one()])), tuple(flat([self.one()])))
        if name == "sqrt":
            return ("sqrt", tuple(flat([self.one()])))
        if name in ACCENTS:
            return ("accent", tuple(flat([self.one()])))
        if name in FONTS | {"boxed"}:
            return flat([self.one()])
        if name in WORDS:
            return list(name)
        if name in SPACES or SIZES.fullmatch(name):
            return []
        return name if name in {"{", "}", "%"} else SYMBOL


def leaf(text):
    """Split the text of a leaf into characters; other than ASCII ones count as symbols."""
    for drawn, typed in {"\u2212": "-", "\u2236": ":"}.items():
        text = text.replace(drawn, typed)
    letters = (c for c in text if not re.match(r"[\s\u2061\u200b\u2032']", c))
    kept = (c if c in "…ℓ" else unicodedata.normalize("NFKC", c) for c in letters)
    return [c if c.isascii() else SYMBOL for c in kept]


def structure(node):
    """Return the nested tuples of a MathML element."""
    tag = node.tag.rpartition("}")[2]
    parts = list(node)
    if tag in {"mi", "mn", "mo", "mtext"}:
        return leaf(node.text or "")
    if tag == "mspace":
        return []
    rows = [flat([structure(part)]) for part in parts]
    if tag == "mfrac":
        return ("frac", tuple(rows[0]), tuple(rows[1]))
    if tag == "msqrt":
        return ("sqrt", tuple(flat(rows)))
    if tag in {"mover", "munder"} and (node.get("accent") or parts[1].text == "\u23df"):
        return ("accent", tuple(rows[0]))
    if tag in {"msub", "msup", "msubsup", "munder", "mover", "munderover"}:
        marks = {"msub": "_", "munder": "_", "msup": "^", "mover": "^"}.get(tag, "_^")
        script = {mark: tuple(row) for mark, row in zip(marks, rows[1:], strict=True)}
        *before, base = rows[0] or [[]]
        below, above = script.get("_", ()), script.get("^", ())
        return [*before, ("script", base, below, above) if below or above else base]
    return flat(rows)


def of_source(tex):
    parser = Tex(tex)
    return flat([parser.group()])


def of_rendered(tex):
    return flat([structure(ET.fromstring(mathml(tex, True)))])


def formulas(text):
    """Return the formulas of a page."""
    tokens = MarkdownIt().use(dollarmath_plugin, double_inline=True).parse(text)
    parts = [part for token in tokens for part in (token, *(token.children or ()))]
    return [part.content for part in parts if part.type.startswith("math")]
