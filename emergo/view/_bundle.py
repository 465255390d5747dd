"""Bundle the page's JavaScript modules into one script, for a file that opens without a server.

Each module becomes a function that returns its exports. A module comes after the modules that it
imports, so imports must not be circular.
"""

import re
from pathlib import Path

STATIC = Path(__file__).parent / "static"
_IMPORT = re.compile(r'^import (\{[^}]*\}|\w+) from "(\./[\w./-]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function\*?|const|let|class) (\w+))", re.MULTILINE)
_DEFAULT = re.compile(r"^export default (\w+);\n", re.MULTILINE)


def bundle() -> str:
    """Return one script with `app.js` and all modules that it imports."""
    scripts: dict[Path, str] = {}

    def add(path: Path) -> str:
        name = "module_" + re.sub(r"\W", "_", str(path.relative_to(root).with_suffix("")))
        if path in scripts:
            return name
        text = path.read_text()
        exports = _EXPORT.findall(text) + [f"default: {each}" for each in _DEFAULT.findall(text)]

        def rewrite(match: re.Match[str]) -> str:
            imported = add((path.parent / match[2]).resolve())
            names = match[1].replace(" as ", ": ")
            pattern = names if names.startswith("{") else f"{{ default: {names} }}"
            return f"const {pattern} = {imported};\n"

        body = _DEFAULT.sub("", _EXPORT.sub("", _IMPORT.sub(rewrite, text)))
        scripts[path] = (
            f"const {name} = (() => {{\n{body}\nreturn {{ {', '.join(exports)} }};\n}})();"
        )
        return name

    root = STATIC.resolve()
    add(root / "app.js")
    return "\n".join(scripts.values())
