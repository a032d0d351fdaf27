"""Planted bugs in the rules: charges, and where work may be placed."""

from __future__ import annotations

from holdfast.sim.mutants import rewrite, swap
from tests.sim.authority.planting import COMMIT, MODEL, bug, lone_server_bug

CHARGES = (
    bug(
        "released-twice",
        "a release refunds the tenant twice",
        rewrite(
            COMMIT + "ledgers.charges:release_binding",
            "refund_tenant(",
            "refund_tenant(draft, replica.namespace, of, binding.charge, binding.priority_class); "
            "refund_tenant(",
        ),
    ),
    bug(
        "released-and-kept",
        "a release does not return the capacity of the node",
        rewrite(
            COMMIT + "ledgers.charges:release_binding",
            "return_node(draft, binding.node, held_by_binding(binding), replica)",
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
        "a bind from a reservation is charged in addition to the claim",
        rewrite(
            COMMIT + "lifecycle.bind:_take_reserved", "give_back(draft, reservation, mine)", "pass"
        ),
    ),
    bug(
        "charged-at-submit",
        "quota is counted when a replica is created",
        rewrite(
            COMMIT + "lifecycle.replica_birth:new_replica",
            "_prioritised(draft, replica.spec))",
            "_prioritised(draft, replica.spec))\n"
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
        rewrite(MODEL + "quota.allowance:quota_refusal", "together + units > whole", "False"),
    ),
    bug(
        "tenant-limit-forgotten",
        "only the limit of the cohort is checked",
        rewrite(MODEL + "quota.allowance:quota_refusal", "used + units > most", "False"),
    ),
    bug(
        "priority-budget-forgotten",
        "the limit of a tenant for urgent work is not checked",
        rewrite(
            MODEL + "quota.allowance:budget_refusal", "use.get(resource, 0) + units > most", "False"
        ),
    ),
    bug(
        "half-a-device-too-much",
        "shares of a device add up to one and a half",
        swap(
            MODEL + "quota.ledger:DeviceSlot.left",
            property(lambda slot: 1500 - sum(slot.owners.values())),
        ),
    ),
    bug(
        "promise-given-away",
        "capacity that victims free goes to the first request",
        rewrite(MODEL + "quota.ledger:NodeLedger.free", "if not self.promised:", "if True:"),
    ),
    bug(
        "budget-ignored",
        "work is disrupted however many replicas are missing",
        rewrite(MODEL + "placement.disruption:disruption_refusal", "gone < ledger.allowed", "True"),
    ),
    bug(
        "readiness-not-counted",
        "a change of readiness does not reach the disruption ledger",
        rewrite(
            COMMIT + "lifecycle.progress_reports:_updated",
            "write_replica(draft, after)",
            "draft.write(keys.key_of(after), after)",
        ),
    ),
    bug(
        "loss-not-counted",
        "work that ends, stops or loses contact stays healthy in the disruption ledger",
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
        "a removed replica leaves no record of its incarnation, and is created again",
        swap(
            COMMIT + "ledgers.derived_records:leave_place", lambda _draft, _replica, ledger: ledger
        ),
    ),
    bug(
        "born-at-a-taken-place",
        "a creation does not check that the previous replica has left the ordinal",
        rewrite(
            COMMIT + "lifecycle.replica_birth:_place_refusal", "if not vacates(last):", "if False:"
        ),
    ),
    bug(
        "cordon-not-mirrored",
        "a change of a node does not reach the gate of its ledger",
        rewrite(
            COMMIT + "ledgers.derived_records:_node", "if after != ledger:", "if ledger is None:"
        ),
    ),
    bug(
        "mark-not-compared",
        "a Fence or Clear applies to any mark",
        rewrite(
            COMMIT + "lifecycle.node_requests:_judged", "if have != request.mark:", "if False:"
        ),
    ),
    bug(
        "back-under-a-mark",
        "an agent resumes its work while its node is marked",
        rewrite(
            COMMIT + "lifecycle.transition_proofs:_return_refusal",
            "if ledger.gate.mark or ledger.gate.phase in GONE:",
            "if False:",
        ),
    ),
    bug(
        "same-life-after-a-fence",
        "a fenced node returns without a new incarnation",
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
            "if later or ledger.gate.phase in GONE:",
            "if True:",
        ),
    ),
    lone_server_bug(
        "keep-work-fenced",
        "a fence counts as the end of `keep` work",
        rewrite(
            COMMIT + "lifecycle.transition_proofs:_fence_refusal",
            "if keeps(replica):",
            "if False:",
        ),
    ),
    bug(
        "strangers-reservation",
        "any replica may consume a reservation",
        rewrite(
            COMMIT + "lifecycle.bind:_owner_refusal",
            "not held_for(reservation, replica)",
            "False",
        ),
    ),
    bug(
        "expired-reservation",
        "a reservation is valid after its deadline",
        rewrite(
            COMMIT + "lifecycle.reservations:overdue_refusal",
            "left_ms > context.settings.skew_ms",
            "True",
        ),
    ),
    bug(
        "gang-before-commit",
        "a member of a gang is bound before all members have capacity",
        rewrite(
            COMMIT + "lifecycle.bind:_owner_refusal",
            "reservation.status.phase is not ReservationPhase.COMMITTED",
            "False",
        ),
    ),
)
