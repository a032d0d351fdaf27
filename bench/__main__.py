"""Lists the benchmarks, or runs those named: `python -m bench [NAME…]`.

`make bench` and `make bench NAME=…` are the usual way in.
"""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path

HERE = Path(__file__).parent
# Modules of this package that are not benchmarks themselves.
_NOT_BENCHMARKS = frozenset(
    {
        "__init__",
        "__main__",
        "api_binds",
        "api_reads",
        "api_rig",
        "api_watches",
        "api_writes",
        "bare_store",
        "control_plane",
        "harness",
        "hollow",
        "http_bare",
        "http_load",
        "load_fairness",
        "load_generator",
        "load_intents",
        "load_pictures",
        "load_plane",
        "load_plot",
        "load_results",
        "load_stall",
        "load_storm",
        "openb_lists",
        "played",
    }
)


def names(folder: Path = HERE) -> dict[str, str]:
    """Every benchmark with the first line of its docstring, read without importing it."""
    found = {}
    for path in sorted((*folder.glob("*.py"), *folder.glob("*/__main__.py"))):
        # A benchmark of several parts is a folder.
        name = path.stem if path.parent == folder else path.parent.name
        if name not in _NOT_BENCHMARKS:
            doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            found[name] = doc.partition("\n")[0]
    return found


def main(arguments: list[str], folder: Path = HERE) -> int:
    known = names(folder)
    if not arguments:
        print(
            "Name one, for example: make bench NAME=model"
            if known
            else "There is no benchmark yet."
        )
        for name, doc in known.items():
            print(f"  {name:<12} {doc}")
        return 0
    unknown = [name for name in arguments if name not in known]
    if unknown:
        print(
            f"no benchmark named {', '.join(unknown)}; there are: {', '.join(known)}",
            file=sys.stderr,
        )
        return 2
    for name in arguments:
        runpy.run_module(f"bench.{name}", run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
