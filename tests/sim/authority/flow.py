"""Planted bugs in how requests flow: what is compared, what became of it, and who is asking."""

from __future__ import annotations

from holdfast.model import requests as ask
from holdfast.sim.mutants import rewrite, swap
from tests.sim.authority.planting import COMMIT, bug, handler, uncompared

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
        "what was sent is sent again when its answer is lost, whatever is there by now",
        rewrite(
            COMMIT + "authority:Authority._answered",
            "return self._ask_fate()",
            "flight.call = self.next_call(); again = flight.group.transaction().writes; "
            "return [Txn(flight.call, Transaction((), again), self._tokens.new_token())]",
        ),
    ),
    bug(
        "lost-means-failed",
        "a lost answer of the store is taken for a failure, and said to be one",
        rewrite(
            COMMIT + "authority:Authority._answered",
            "return self._ask_fate()",
            "self._flight = None; return self._fail(flight, Unavailable('lost'))",
        ),
    ),
    bug(
        "lost-means-done",
        "a lost answer of the store is taken for a success",
        rewrite(
            COMMIT + "authority:Authority._answered",
            "return self._ask_fate()",
            "self._flight = None; return self._answers("
            "[m for m in flight.members if not isinstance(m[1], Doubt)], 1, now)",
        ),
    ),
    bug(
        "fate-not-looked-at",
        "the fate of a transaction is asked for, and whatever it is, taken for a success",
        rewrite(
            COMMIT + "authority:Authority._fate",
            "if revision is not None:",
            "if not isinstance(fate, Exception):\n        revision = revision or 1",
        ),
    ),
    bug(
        "acknowledged-before-commit",
        "everybody is answered when the transaction is sent",
        rewrite(
            COMMIT + "authority:Authority._send",
            "return [Txn(call, transaction, token)]",
            "return [Txn(call, transaction, token), *self._answers(members, 1, now)]",
        ),
    ),
    bug(
        "refused-on-old-news",
        "a refusal is decided on a view that nobody confirms",
        rewrite(
            COMMIT + "authority:Authority._start",
            "draft.refuse()",
            "isinstance(outcome, Refusal) or draft.refuse()",
        ),
    ),
    bug(
        "group-without-overlay",
        "requests of one group do not see what the ones before them will have written",
        rewrite(
            COMMIT + "draft:Draft.read",
            "if key in self._written:",
            "if False:",
        ),
    ),
    bug(
        "operation-not-remembered",
        "an accepted operation is not kept on its object",
        rewrite(
            COMMIT + "operations:add_operation",
            "if not operation:",
            "if operation or not operation:",
        ),
    ),
    bug(
        "digest-ignored",
        "an operation id is enough, whatever is asked for under it",
        rewrite(COMMIT + "operations:_judge", "past.digest == mark", "past.digest"),
    ),
)

IDENTITIES = (
    bug(
        "stale-epoch-accepted",
        "the holder is checked, the epoch is not",
        rewrite(COMMIT + "leases:term_refusal", "current.epoch != term.epoch", "False"),
    ),
    bug(
        "holder-not-checked",
        "the epoch is checked, its holder is not",
        rewrite(COMMIT + "leases:term_refusal", "current.holder != context.identity.name", "False"),
    ),
    bug(
        "epoch-not-counted",
        "a takeover keeps the epoch of the last holder",
        handler(
            ask.AcquireLease,
            COMMIT + "leases:acquire",
            "_last_epoch(draft, request.scope) + 1",
            "max(1, _last_epoch(draft, request.scope))",
        ),
    ),
    bug(
        "other-nodes-agent",
        "any agent speaks for any node's work",
        rewrite(
            COMMIT + "lifecycle.transitions:agent_refusal",
            "context.identity.node != binding.node",
            "False",
        ),
        # Nor is what is another's hidden from it: each of the two would be enough by itself.
        rewrite(
            COMMIT + "access.visibility:visible_object",
            "binding is not None and binding.node == node",
            "True",
        ),
    ),
    bug(
        "other-life-of-the-agent",
        "an agent speaks for work of another life of its node",
        rewrite(
            COMMIT + "lifecycle.transitions:agent_refusal",
            "if incarnation != binding.node_incarnation:",
            "if incarnation is None:",
        ),
    ),
    bug(
        "anybody-forwards",
        "a forwarded identity is believed, whoever forwards it",
        rewrite(
            COMMIT + "server:AuthorityServer._asked",
            "Actor.AUTHORITY not in acts_as(identity)",
            "False",
        ),
    ),
    bug(
        "registration-opens-a-node",
        "an agent that registers again takes its operator's cordon, drain and taints away",
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
        "an object under deletion goes whatever holds it",
        rewrite(COMMIT + "objects.deletion:finish", "and not after.metadata.finalizers", ""),
    ),
)
