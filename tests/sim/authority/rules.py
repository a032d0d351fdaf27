"""Planted bugs in the rules themselves: what is charged, and what may be where."""

from __future__ import annotations

from holdfast.sim.mutants import rewrite, swap
from tests.sim.authority.planting import COMMIT, MODEL, bug, bug_of_the_lone

CHARGES = (
    bug(
        "released-twice",
        "a release returns the tenant's charge twice",
        rewrite(
            COMMIT + "ledgers.charges:release_binding",
            "refund_tenant(",
            "refund_tenant(draft, replica.namespace, of, binding.charge, binding.priority_class); "
            "refund_tenant(",
        ),
    ),
    bug(
        "released-and-kept",
        "a release does not give the place back",
        rewrite(
            COMMIT + "ledgers.charges:release_binding",
            "return_node(draft, binding.node, held, replica)",
            "pass",
        ),
    ),
    bug(
        "claim-leaked",
        "a reservation that is dropped keeps what it held",
        rewrite(
            COMMIT + "lifecycle.reservations:drop_claims",
            "give_back(draft, reservation, claim)",
            "pass",
        ),
    ),
    bug(
        "claim-charged-on",
        "a bind out of a reservation is charged besides the claim",
        rewrite(
            COMMIT + "lifecycle.bind:_take_reserved", "give_back(draft, reservation, mine)", "pass"
        ),
    ),
    bug(
        "charged-at-submit",
        "quota is counted when a replica is created",
        rewrite(
            COMMIT + "lifecycle.replica_birth:new_replica",
            "spec = _prioritised(draft, replica.spec)",
            "spec = _prioritised(draft, replica.spec)\n"
            "    from holdfast.commit.ledgers.charges import charge_tenant\n"
            "    from holdfast.model.placement.fit import demand_of\n"
            "    from holdfast.model.kinds.tenant import CapacityClass\n"
            "    wanted = demand_of(spec.template).amounts\n"
            "    of = CapacityClass.HARD\n"
            "    charge_tenant(draft, context, replica.namespace, of, wanted, 'default')",
        ),
    ),
    bug(
        "cohort-forgotten",
        "a tenant may borrow what its cohort does not have",
        rewrite(MODEL + "allowance:quota_refusal", "together + units > whole", "False"),
    ),
    bug(
        "tenant-limit-forgotten",
        "only the cohort's limit is looked at",
        rewrite(MODEL + "allowance:quota_refusal", "used + units > most", "False"),
    ),
    bug(
        "priority-budget-forgotten",
        "how much of a tenant's work may be urgent is not looked at",
        rewrite(MODEL + "allowance:budget_refusal", "use.get(resource, 0) + units > most", "False"),
    ),
    bug(
        "half-a-device-too-much",
        "shares of a device add up to one and a half",
        swap(
            MODEL + "ledger:DeviceSlot.left",
            property(lambda slot: 1500 - sum(slot.owners.values())),
        ),
    ),
    bug(
        "promise-given-away",
        "what victims make free goes to whoever comes first",
        rewrite(MODEL + "ledger:NodeLedger.free", "if not self.promised:", "if True:"),
    ),
    bug(
        "budget-ignored",
        "work is taken away whatever is missing already",
        rewrite(MODEL + "placement.disruption:disruption_refusal", "gone < ledger.allowed", "True"),
    ),
    bug(
        "readiness-not-counted",
        "a report that work is ready, or not any more, does not reach the disruption ledger",
        rewrite(
            COMMIT + "lifecycle.progress_reports:_updated",
            "write_replica(draft, after)",
            "draft.write(keys.key_of(after), after)",
        ),
    ),
    bug(
        "loss-not-counted",
        "work that ends, is stopped or is out of contact stays healthy in the disruption ledger",
        rewrite(
            COMMIT + "lifecycle.transitions:record_transition",
            "write_replica(draft, after)",
            "draft.write(keys.key_of(after), after)",
        ),
    ),
)

PLACES = (
    bug(
        "gone-incarnations-forgotten",
        "a replica that goes leaves no word of its incarnation behind, and is born once more",
        swap(
            COMMIT + "ledgers.derived_records:leave_place", lambda _draft, _replica, ledger: ledger
        ),
    ),
    bug(
        "born-at-a-taken-place",
        "a birth does not look whether the one before it has left the place",
        rewrite(
            COMMIT + "lifecycle.replica_birth:_place_refusal", "if not vacates(last):", "if False:"
        ),
    ),
    bug(
        "cordon-not-mirrored",
        "a change of a node does not reach its gate",
        rewrite(
            COMMIT + "ledgers.derived_records:_node", "if after != ledger:", "if ledger is None:"
        ),
    ),
    bug(
        "mark-not-compared",
        "a fence or a clearing is about whatever mark there is",
        rewrite(
            COMMIT + "lifecycle.node_requests:_judged", "if have != request.mark:", "if False:"
        ),
    ),
    bug(
        "back-under-a-mark",
        "an agent takes its work back while its node is marked",
        rewrite(
            COMMIT + "lifecycle.transition_proofs:_return_refusal",
            "if ledger.gate.mark or ledger.gate.phase in _GONE:",
            "if False:",
        ),
    ),
    bug(
        "same-life-after-a-fence",
        "a fenced node comes back without a new life",
        rewrite(
            COMMIT + "lifecycle.node_requests:_returned",
            "incarnation=old.status.incarnation + 1",
            "incarnation=old.status.incarnation",
        ),
    ),
    bug(
        "repaired-before-the-fence",
        "work is declared gone though its node is not fenced",
        rewrite(
            COMMIT + "lifecycle.transition_proofs:_fence_refusal",
            "if later or ledger.gate.phase in _GONE:",
            "if True:",
        ),
    ),
    bug_of_the_lone(
        "keep-work-fenced",
        "a fence is taken for the end of work that runs on when it is cut off",
        rewrite(
            COMMIT + "lifecycle.transition_proofs:_fence_refusal",
            "if keeps(replica):",
            "if False:",
        ),
    ),
    bug(
        "strangers-reservation",
        "a reservation is consumed by whoever names it",
        rewrite(
            COMMIT + "lifecycle.bind:_owner_refusal",
            "not held_for(reservation, replica)",
            "False",
        ),
    ),
    bug(
        "expired-reservation",
        "a reservation is good after its deadline",
        rewrite(
            COMMIT + "lifecycle.reservations:overdue_refusal",
            "left_ms > context.settings.skew_ms",
            "True",
        ),
    ),
    bug(
        "gang-before-commit",
        "a member of a gang is bound before all have their places",
        rewrite(
            COMMIT + "lifecycle.bind:_owner_refusal",
            "reservation.status.phase is not ReservationPhase.COMMITTED",
            "False",
        ),
    ),
)
