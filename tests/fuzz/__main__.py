"""`make fuzz`: feed every reader for some minutes, and say what was covered.

    python -m tests.fuzz --minutes 10
    python -m tests.fuzz --only "label selectors" --seed 17

The second replays what a failure printed. It exits with 1 when any target failed.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
import traceback

from tests.fuzz.mutating import change
from tests.fuzz.running import Tally, explore
from tests.fuzz.targets import Target, all_targets

# A round of one target: small enough that all of them have their turns in a short run.
INPUTS = 200
MUTATED_S = 2.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--only", action="append", default=[], help="the name of a target")
    parser.add_argument("--seed", type=int, help="one round by this seed, instead of minutes")
    given = parser.parse_args()
    targets = [it for it in all_targets() if not given.only or it.name in given.only]
    if not targets:
        parser.error(f"there are: {', '.join(it.name for it in all_targets())}")
    tallies = {target.name: Tally() for target in targets}
    failed: dict[str, int] = {}
    until = time.monotonic() + given.minutes * 60
    while True:
        for target in targets:
            if target.name not in failed:
                seed = given.seed if given.seed is not None else secrets.randbits(32)
                if not _round(target, seed, tallies[target.name]):
                    failed[target.name] = seed
        if given.seed is not None or time.monotonic() >= until or len(failed) == len(targets):
            break
    for target in targets:
        print(tallies[target.name].line(target.name))
    total = sum(it.inputs for it in tallies.values())
    print(f"{total} inputs, {len(targets)} targets, {len(failed)} failed")
    for name, seed in failed.items():
        print(f'replay: python -m tests.fuzz --only "{name}" --seed {seed}')
    return bool(failed)


def _round(target: Target, seed: int, tally: Tally) -> bool:
    try:
        explore(target, INPUTS, seed, tally)
        change(target, MUTATED_S, seed, tally)
    except Exception:  # noqa: BLE001 - whatever it is, it is shown and counted
        print(f"\n{target.name} failed, seed {seed}:")
        traceback.print_exc(limit=-6, file=sys.stdout)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
