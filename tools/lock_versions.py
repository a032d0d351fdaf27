"""Rewrites constraints.txt: `make lock`, or `python tools/lock_versions.py [--keep]`.

A fresh environment gets the newest versions that pyproject.toml allows; with `--keep` those of the
file stay where they still fit. Each line has the hashes of the wheels for every Python and machine
that Holdfast supports, as the package index states them, so that `make install` installs nothing
that was not locked here. Run the tests before committing the result.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

FILE = Path("constraints.txt")
HEADING = (
    "# Exact versions of all that is installed for development, with the hashes of their wheels.\n"
    "# `make lock` rewrites this file.\n"
)
PYTHONS = ("3.11", "3.12", "3.13")
MACHINES = ("x86_64", "aarch64")
# Older tags are listed as well: a wheel names the oldest system that it runs on.
TAGS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_26", "manylinux_2_17", "manylinux2014")
_PIN = re.compile(r"^([A-Za-z0-9._-]+==[^ \\;]+)")

Hashes = dict[str, set[str]]


def pins(text: str) -> Iterator[str]:
    """The lines NAME==VERSION of a file, without their hashes."""
    for line in text.splitlines():
        found = _PIN.match(line)
        if found is not None:
            yield found[1]


def rendered(locked: Iterable[str], hashes: Hashes) -> str:
    """The text of the file. Raises ValueError for a package without any known file."""
    parts = [HEADING]
    for pin in sorted(locked, key=str.casefold):
        known = sorted(hashes.get(normal(pin), ()))
        if not known:
            raise ValueError(f"no wheel of {pin} is known for any Python and machine")
        parts.append(" \\\n    ".join([pin, *(f"--hash=sha256:{it}" for it in known)]) + "\n")
    return "".join(parts)


def normal(pin: str) -> str:
    """A pin with its name as the package index writes it."""
    name, _, version = pin.partition("==")
    return re.sub(r"[-_.]+", "-", name).lower() + "==" + version


def reported(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Pin and hash of each file that pip would install."""
    for item in report["install"]:
        about, origin = item["metadata"], item["download_info"]
        known = origin["archive_info"].get("hashes", {}).get("sha256")
        if known is None:
            # A directory of wheels has no index with their hashes.
            data = Path(unquote(urlsplit(origin["url"]).path)).read_bytes()
            known = hashlib.sha256(data).hexdigest()
        yield normal(f"{about['name']}=={about['version']}"), known


def _pip(python: Path, *arguments: str) -> str:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _files(python: Path, scratch: Path, wanted: list[str], version: str, machine: str) -> Hashes:
    """The wheels of these pins for one Python and machine; some may have none."""
    file = scratch / "report.json"
    places = [word for tag in TAGS for word in ("--platform", f"{tag}_{machine}")]
    try:
        _pip(
            python,
            *("install", "-qq", "--dry-run", "--no-deps", "--ignore-installed"),
            *("--target", str(scratch / "target"), "--only-binary", ":all:"),
            *("--python-version", version, *places, "--report", str(file), *wanted),
        )
    except subprocess.CalledProcessError:
        if len(wanted) == 1:
            print(f"no wheel of {wanted[0]} for Python {version} on {machine}", file=sys.stderr)
            return {}
        # One pin without a wheel fails the whole call: halve, so that the others are found soon.
        half = len(wanted) // 2
        parts = (wanted[:half], wanted[half:])
        return merged(_files(python, scratch, part, version, machine) for part in parts)
    found: Hashes = {}
    for pin, known in reported(json.loads(file.read_text())):
        found.setdefault(pin, set()).add(known)
    return found


def merged(parts: Iterable[Hashes]) -> Hashes:
    """All hashes of all parts."""
    found: Hashes = {}
    for part in parts:
        for pin, known in part.items():
            found.setdefault(pin, set()).update(known)
    return found


def lock(scratch: Path, *, keep: bool) -> str:
    """The text that the file should have."""
    subprocess.run([sys.executable, "-m", "venv", str(scratch / "venv")], check=True)
    python = scratch / "venv" / "bin" / "python"
    given: list[str] = []
    if keep:
        kept = scratch / "kept.txt"
        kept.write_text("\n".join(pins(FILE.read_text())))
        given = ["--constraint", str(kept)]
    # The build requirements come first: `make install` builds Holdfast with what is locked.
    _pip(python, "install", "-qq", "--upgrade", *given, "setuptools")
    _pip(python, "install", "-qq", *given, "--editable", ".[dev]")
    # Only names and versions: the origin of a package is specific to this machine.
    frozen = _pip(python, "freeze", "--all", "--exclude-editable", "--exclude", "pip")
    locked = list(pins(frozen))
    hashes = merged(
        _files(python, scratch, locked, version, machine)
        for version in PYTHONS
        for machine in MACHINES
    )
    return rendered(locked, hashes)


def main() -> int:
    """Rewrite the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="keep the versions of the file")
    keep = parser.parse_args().keep
    with tempfile.TemporaryDirectory() as scratch:
        FILE.write_text(lock(Path(scratch), keep=keep))
    return 0


if __name__ == "__main__":
    sys.exit(main())
