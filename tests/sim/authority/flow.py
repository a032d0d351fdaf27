"""Planted bugs in how requests flow: compares, fates of transactions, and identities."""

from __future__ import annotations

from holdfast.sim.mutants import rewrite, swap
from tests.sim.authority.planting import COMMIT, bug, uncompared

COMPARES = (
    uncompared("replica", "the replica", "objects/replicas/"),
    uncompared("node-ledger", "the ledger of a node", "ledgers/node/"),
    uncompared("quota-ledger", "the ledger of a cohort", "ledgers/quota/"),
    uncompared("disruption-ledger", "the ledger of disruptions", "ledgers/disruption/"),
    uncompared("epoch", "the epoch", "epochs/"),
    uncompared("lease", "the lease that is taken over", "objects/leases/", "epochs/"),
    uncompared("tenant", "the tenant", "objects/tenants/"),
    uncompared("reservation", "the reservation", "objects/reservations/"),
    uncompared("node", "the node", "objects/nodes/"),
)

OUTCOMES = (
    bug(
        "blind-retry",
        "a transaction whose answer is lost is sent again without any compare",
        rewrite(
            COMMIT + "authority:Authority._answered",
            "return self._ask_fate()",
            "flight.call = self.next_call(); again = flight.group.transaction().writes; "
            "return [Txn(flight.call, Transaction((), again), self._tokens.new_token())]",
        ),
    ),
    bug(
        "lost-means-failed",
        "a lost answer of the store is treated and reported as a failure",
        rewrite(
            COMMIT + "authority:Authority._answered",
            "return self._ask_fate()",
            "self._flight = None; return self._fail(flight, Unavailable('lost'))",
        ),
    ),
    bug(
        "lost-means-done",
        "a lost answer of the store is treated as a success",
        rewrite(
            COMMIT + "authority:Authority._answered",
            "return self._ask_fate()",
            "self._flight = None; return self._answers("
            "[m for m in flight.members if not isinstance(m[1], Doubt)], 1, now)",
        ),
    ),
    bug(
        "fate-not-looked-at",
        "the fate of a transaction is queried, and every fate counts as a success",
        rewrite(
            COMMIT + "authority:Authority._fate",
            "if isinstance(fate, TokenApplied):\n"
            "        return self._committed(flight, fate.revision, now)",
            "if not isinstance(fate, HoldfastError):\n"
            "        is_applied = isinstance(fate, TokenApplied)\n"
            "        return self._committed(flight, fate.revision if is_applied else 1, now)",
        ),
    ),
    bug(
        "acknowledged-before-commit",
        "requests are answered when their transaction is sent",
        rewrite(
            COMMIT + "authority:Authority._send",
            "return [Txn(call, transaction, token)]",
            "return [Txn(call, transaction, token), *self._answers(members, 1, now)]",
        ),
    ),
    bug(
        "refused-on-stale-view",
        "a refusal rests on a view that is not confirmed",
        rewrite(
            COMMIT + "authority:Authority._start",
            "draft.refuse()",
            "isinstance(outcome, Refusal) or draft.refuse()",
        ),
    ),
    bug(
        "group-without-overlay",
        "requests of one group do not see the writes of the requests before them",
        rewrite(
            COMMIT + "draft:Draft.read",
            "if key in self._written:",
            "if False:",
        ),
    ),
    bug(
        "operation-not-remembered",
        "an accepted operation is not recorded on its object",
        rewrite(
            COMMIT + "operations:add_operation",
            "if not operation:",
            "if operation or not operation:",
        ),
    ),
    bug(
        "digest-ignored",
        "an operation id is accepted for a different request",
        rewrite(COMMIT + "operations:_judge", "past.digest == mark", "past.digest"),
    ),
)

IDENTITIES = (
    bug(
        "stale-epoch-accepted",
        "only the holder of a lease is checked, not the epoch",
        rewrite(COMMIT + "leases:term_refusal", "current.epoch != term.epoch", "False"),
    ),
    bug(
        "holder-not-checked",
        "only the epoch of a lease is checked, not the holder",
        rewrite(COMMIT + "leases:term_refusal", "current.holder != context.identity.name", "False"),
    ),
    bug(
        "epoch-not-counted",
        "a takeover keeps the epoch of the last holder",
        rewrite(
            COMMIT + "leases:acquire",
            "_last_epoch(draft, request.scope) + 1",
            "max(1, _last_epoch(draft, request.scope))",
        ),
    ),
    bug(
        "other-nodes-agent",
        "any agent may report work of any node",
        rewrite(
            COMMIT + "lifecycle.transitions:agent_refusal",
            "context.identity.node != binding.node",
            "False",
        ),
        # Objects of other nodes must be visible, too: either check alone stops the bug.
        rewrite(
            COMMIT + "access.visibility:visible_object",
            "binding is not None and binding.node == node",
            "True",
        ),
    ),
    bug(
        "other-life-of-the-agent",
        "an agent may report work of another incarnation of its node",
        rewrite(
            COMMIT + "lifecycle.transitions:agent_refusal",
            "if incarnation != binding.node_incarnation:",
            "if incarnation is None:",
        ),
    ),
    bug(
        "forwarder-not-checked",
        "a forwarded identity is accepted from any sender",
        rewrite(
            COMMIT + "server:AuthorityServer._asked",
            "Actor.AUTHORITY not in acts_as(identity)",
            "False",
        ),
    ),
    bug(
        "registration-opens-a-node",
        "an agent that registers again removes the operator's cordon, drain and taints",
        swap(
            COMMIT + "lifecycle.node_requests:AGENT_SPEC",
            ("capacity", "reserved", "devices", "cordoned", "drain", "taints"),
        ),
    ),
    bug(
        "born-for-the-dying",
        "a replica is created for a workload that is being deleted",
        rewrite(
            COMMIT + "lifecycle.replica_birth:birth_refusal",
            "workload.metadata.deletion_timestamp is not None",
            "False",
        ),
    ),
    bug(
        "finalizers-ignored",
        "an object under deletion is removed despite its finalizers",
        rewrite(COMMIT + "objects.deletion:finish", "and not after.metadata.finalizers", ""),
    ),
)
