"""The page's modules as one script, for a file that opens without a server. Each module becomes a function that returns what it
exports, after those that it imports; they import by name, from files beside them, and not in circles."""

import re
from pathlib import Path

STATIC = Path(__file__).parent / "static"
_IMPORT = re.compile(r'^import (\{[^}]*\}|\w+) from "(\./[\w./-]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function\*?|const|let|class) (\w+))", re.MULTILINE)
_DEFAULT = re.compile(r"^export default (\w+);\n", re.MULTILINE)


def bundle(entry: str = "app.js") -> str:
    """`entry` and all that it imports."""
    done: dict[Path, str] = {}

    def add(path: Path) -> str:
        if path in done:
            return _name(path)
        text = path.read_text()
        for _, needed in _IMPORT.findall(text):
            add((path.parent / needed).resolve())
        exported = [*_EXPORT.findall(text), *(f"default: {name}" for name in _DEFAULT.findall(text))]
        inner = _IMPORT.sub(lambda match: _taken(match[1], (path.parent / match[2]).resolve()), text)
        inner = _DEFAULT.sub("", _EXPORT.sub("", inner))
        done[path] = f"const {_name(path)} = (() => {{\n{inner}\nreturn {{ {', '.join(exported)} }};\n}})();"
        return _name(path)

    add((STATIC / entry).resolve())
    return "\n".join(done.values())


def _taken(names: str, path: Path) -> str:
    given = names.replace(" as ", ": ") if names.startswith("{") else f"{{ default: {names} }}"
    return f"const {given} = {_name(path)};\n"


def _name(path: Path) -> str:
    return "module_" + re.sub(r"\W", "_", path.relative_to(STATIC.resolve()).with_suffix("").as_posix())
