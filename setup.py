"""Compiles the shim into every wheel and every editable install.

All else is in pyproject.toml. Where there is no compiler the package is made without the program,
and says so; the program is then compiled when it is first needed (host/runtime/shim_binary.py).
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOM = Path("src/holdfast/host/runtime")

# Loaded from its file: what the package needs to be imported is not installed yet.
_spec = importlib.util.spec_from_file_location(
    "shim_build", Path(__file__).parent / ROOM / "shim_build.py"
)
shim_build = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(shim_build)


class BuildWithShim(build_py):
    """Puts the program beside its source, in the wheel or, for an editable install, in src."""

    def run(self) -> None:
        super().run()
        place = ROOM if self.editable_mode else Path(self.build_lib, *ROOM.parts[1:])
        target = place / shim_build.NAME
        try:
            shim_build.build(target)
        except shim_build.CannotCompile as problem:
            self.announce(f"warning: {problem}; the shim is not part of this build", level=4)


class Platform(Distribution):
    """A distribution with a program for one kind of machine."""

    def has_ext_modules(self) -> bool:
        return True


class WheelForAnyPython(bdist_wheel):
    """The program is for one kind of machine, but for every Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(distclass=Platform, cmdclass={"build_py": BuildWithShim, "bdist_wheel": WheelForAnyPython})
