"""Planted bugs about node names that pass to another machine while the first one still runs."""

from __future__ import annotations

from holdfast.sim.mutants import rewrite
from tests.sim.end_to_end.planting import AGENT, COMMIT, CORRECT, MODEL, REUSED, TWO_MACHINES, bug

INSTALLATIONS = (
    bug(
        "stop-proven-by-another-machine",
        "any machine under the node's name counts as the one that ran the work",
        rewrite(
            MODEL + "nodes.installations:ran_on",
            "return binding.installation == installation",
            "return True",
        ),
        world=REUSED,
    ),
    bug(
        "nameless-machine-goes-on",
        "a machine that has lost its node's name ignores that its work was given up",
        rewrite(
            AGENT + "agent:Agent._may_tend",
            "self._registration.is_after_fence or self._registration.has_lost_name",
            "self._registration.is_after_fence",
        ),
        world=TWO_MACHINES,
    ),
    bug(
        "adopted-by-another-machine",
        "whichever machine has the node's name takes over the work of the first one",
        rewrite(MODEL + "nodes.installations:adopts", "and ran_on(binding, installation)", ""),
        rewrite(
            COMMIT + "lifecycle.transition_proofs:_return_refusal",
            "is_present and ran_on(binding, ledger.gate.installation)",
            "is_present",
        ),
        world=REUSED,
    ),
    bug(
        "returned-work-stopped",
        "work that outlived a fence is failed and stopped when its machine returns",
        rewrite(
            CORRECT + "repair:RepairController._of_earlier_life",
            "if awaits_adoption(replica, binding):",
            "if False:",
        ),
        rewrite(
            COMMIT + "lifecycle.transition_proofs:_fence_refusal",
            "later and not binding.installation and not ledger.gate.installation",
            "later",
        ),
        world=REUSED,
    ),
)
