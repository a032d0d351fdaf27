"""Determines how well this machine isolates tenants, and what prevents a stronger level.

Called once when an agent starts, before it registers its node. The levels are promises, so each is
tried for real, and a weaker one is stated where it fails. Notes for the operator go to the node's
status, since operators do not read the log of each agent.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from holdfast.host.runtime import shim_binary
from holdfast.host.runtime.cgroups import detect
from holdfast.host.runtime.cgroups.groups import Cgroups
from holdfast.host.runtime.confinement import NARROW, SINGLE_TENANT
from holdfast.host.runtime.containers import containers, runc
from holdfast.host.runtime.shim_binary import ShimProgram
from holdfast.host.runtime.starting import RuntimeOptions
from holdfast.host.runtime.surroundings import PATH_DEFAULT
from holdfast.model.errors import Unavailable
from holdfast.model.kinds.placement import Isolation

NOTE_MAX = 300
SHARED_SOCKETS = (
    "processes can connect to abstract UNIX sockets of other tenants' processes: the kernel has no "
    "Landlock with scopes; use Linux 6.12 or newer with Landlock"
)


def offered_isolation(
    folder: Path, node: str, options: RuntimeOptions
) -> tuple[Isolation, tuple[str, ...]]:
    """The isolation level that an agent with this directory can offer, and notes. Blocks."""
    numbers = options.rules.numbers
    if numbers is None:
        why = f"all work runs as the agent's user: the agent is not root, or has {SINGLE_TENANT}"
        return Isolation.NONE, (why,)
    limits: tuple[str, ...] = ()
    try:
        program = shim_binary.find()
        limits = limits_of(program)
        first = numbers.block(numbers.first)
        if first is None:
            raise Unavailable(NARROW)
        groups = detect.find(node, folder, options.cgroup)
        try:
            containers.check(folder, groups, program, first)
            level, lacking = _sandboxed(folder, groups, program, first, options)
        finally:
            groups.retire()
        flaws = runc.warnings(runc.installed_version())
    except Unavailable as error:
        return Isolation.USER, (f"containers are not available: {error}"[:NOTE_MAX], *limits)
    notes = tuple(f"runc has {flaw}: install a fixed version"[:NOTE_MAX] for flaw in flaws)
    return level, (*lacking, *notes, *limits)


def _sandboxed(
    folder: Path, groups: Cgroups, program: ShimProgram, first: int, options: RuntimeOptions
) -> tuple[Isolation, tuple[str, ...]]:
    """The level of containers, and why sandboxes fail; no note if no runtime is installed."""
    named = options.sandbox_runtime
    if named is None and shutil.which(runc.SANDBOX, path=PATH_DEFAULT) is None:
        return Isolation.CONTAINER, ()
    try:
        runtime = runc.sandbox(named)
        containers.try_runtime(folder, groups, program, first, runtime)
    except Unavailable as error:
        return Isolation.CONTAINER, (f"sandboxes are not available: {error}"[:NOTE_MAX],)
    return Isolation.SANDBOXED, ()


def limits_of(program: ShimProgram) -> tuple[str, ...]:
    """What processes of different tenants still share here, and would not on another kernel."""
    return () if shim_binary.can_scope_sockets(program) else (SHARED_SOCKETS,)
