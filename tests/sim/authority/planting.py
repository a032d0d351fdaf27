"""Ways to plant bugs in the authority: rewrite a line, skip the compare of a record."""

from __future__ import annotations

from holdfast.sim.mutants import Mutant, Plant, rewrite

SCENARIO = "holdfast.sim.worlds.authority.scenario:SCENARIO"
ALONE = "holdfast.sim.worlds.authority.scenario:ALONE"
COMMIT = "holdfast.commit."
MODEL = "holdfast.model."


def bug(name: str, mistake: str, *plants: Plant) -> Mutant:
    return Mutant(name, mistake, SCENARIO, plants)


def lone_server_bug(name: str, mistake: str, *plants: Plant) -> Mutant:
    """A bug that shows where servers decide alone, by wrong calendars."""
    return Mutant(name, mistake, ALONE, plants)


def benign(name: str, change: str, *plants: Plant) -> Mutant:
    return Mutant(name, change, SCENARIO, plants, benign=True)


def uncompared(name: str, what: str, *prefixes: str) -> Mutant:
    """A transaction does not compare the records of one kind that its decision rests on."""
    kept = f"dict(read for read in self._reads.items() if not read[0].startswith({prefixes!r}))"
    return bug(
        f"{name}-not-compared",
        f"a transaction does not compare {what} that it rested on",
        rewrite(
            COMMIT + "draft:Draft.accept",
            "self._keep_reads()",
            f"self._group.compares.update({kept})",
        ),
    )
