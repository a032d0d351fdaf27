"""Planted bugs: for each sentence of the retry storm one that makes it untrue."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.agent.work import REPORT_POLICY
from holdfast.commit.flow.concurrency_limit import FEW_SCALE, MEASURED_MAX_MS
from holdfast.commit.flow.request_classes import Flow, RequestClass
from holdfast.correct.nodes.silence import NodeSilence
from holdfast.model.access.identity import Identity
from holdfast.model.requests import NodeAction
from holdfast.sim.mutants import Plant, rewrite, swap
from tests.sim.scenarios.bugs import Bug, bug

SMALL = "sc14-retry-storm-small"
AGENT, COMMIT = "holdfast.agent.", "holdfast.commit."
CORRECT, OBSERVE = "holdfast.correct.", "holdfast.observe."


def _classify_as_tenant(identity: Identity, errand: Any) -> Flow:
    """Classify every client as a program of a tenant."""
    tenant = identity.tenants[0] if identity.tenants else identity.name.split(":")[1]
    return Flow(RequestClass.TENANT, tenant, identity.name)


def _time_since_heartbeat_ms(evidence: NodeSilence, node: str, since_ms: int, now_ms: int) -> int:
    """The time since the last heartbeat, also when the servers could not receive any."""
    return now_ms - max(evidence.heard_ms(node) or 0, since_ms)


LEASES_NOT_FIRST = swap(COMMIT + "flow.request_classes:classify", _classify_as_tenant)
NO_RETRY_BUDGET: tuple[Plant, ...] = (
    swap(AGENT + "heartbeats:NodeHeartbeats._may_repeat", lambda _heartbeats: True),
    swap(OBSERVE + "retry:Budget.spend", lambda _budget, _now_ms: True),
)
# Clients that fail together retry together.
NO_JITTER: tuple[Plant, ...] = (
    rewrite(OBSERVE + "cache:Cache._reopen_later", "(0.5 + self._rng.random() / 2)", "1"),
    rewrite(OBSERVE + "retry:RetryPolicy.pause", "int(rng.random() * full / 2)", "0"),
    rewrite(AGENT + "heartbeats:NodeHeartbeats._sooner", "(0.5 + self._rng.random() / 2)", "1"),
    rewrite(
        COMMIT + "flow.flow_control:FlowController._retry_after_s", "self._rng.random() *", "0 *"
    ),
)

# Each server takes the queue of the others for a slow store, and admits more.
QUEUE_TAKEN_FOR_SLOWNESS: tuple[Plant, ...] = (
    swap(COMMIT + "flow.concurrency_limit:ALONE_MAX_MS", MEASURED_MAX_MS),
    swap(COMMIT + "flow.concurrency_limit:SCALE_MIN", FEW_SCALE),
    rewrite(
        COMMIT + "flow.concurrency_limit:ConcurrencyLimit.observe_end",
        "min(self.scale, self._most / self._seats)",
        "self.scale",
    ),
)

# These three are the point of the storm; the default run includes them.
FIRST = (
    bug(
        SMALL,
        "sc14.leases",
        "renewals and leases wait in the queue with all other requests",
        LEASES_NOT_FIRST,
    ),
    bug(SMALL, "sc14.retries", "clients retry without a budget", *NO_RETRY_BUDGET),
    bug(SMALL, "sc14.spread", "pauses have no jitter", *NO_JITTER),
)
OTHERS: tuple[Bug, ...] = (
    bug(
        SMALL,
        "sc14.leases",
        "a limit takes the queue of all servers for a slow store, and never goes below a few seats",
        *QUEUE_TAKEN_FOR_SLOWNESS,
    ),
    bug(
        SMALL,
        "sc14.retries",
        "one resync in two comes a few seconds after the last one",
        rewrite(
            OBSERVE + "cache:Cache._next_resync_ms",
            "self._resync_ms * (0.5 + self._rng.random() / 2)",
            "8_000 if now.monotonic_ms % 2 == 0 else self._resync_ms",
        ),
    ),
    bug(
        SMALL,
        "sc14.recovered",
        "work that waits for servers is not woken when they return, and waits for minutes",
        swap(
            AGENT + "replica_workers:ReplicaWorkers.servers_heard", lambda _workers, _now_ms: None
        ),
        swap(
            AGENT + "work:REPORT_POLICY",
            msgspec.structs.replace(REPORT_POLICY, pause_max_ms=400_000),
        ),
    ),
    bug(
        SMALL,
        "sc14.normal",
        "seats are not released after a request",
        rewrite(
            COMMIT + "flow.flow_control:FlowController.leave", "lane.executing -= 1\n", "pass\n"
        ),
    ),
    bug(
        SMALL,
        "sc14.first-round",
        "a renewal that fails is repeated at once",
        swap(AGENT + "heartbeats:NodeHeartbeats._may_repeat", lambda _heartbeats: True),
        rewrite(AGENT + "heartbeats:NodeHeartbeats._sooner", "RETRY_MIN_MS <<", "100 <<"),
    ),
    bug(
        SMALL,
        "sc14.unfenced",
        "a controller without heartbeats takes all nodes for silent and marks them without limit",
        swap(CORRECT + "nodes.silence:NodeSilence.silence_ms", _time_since_heartbeat_ms),
        swap(CORRECT + "nodes.silence:NodeSilence.is_listening", lambda *_: True),
        swap(CORRECT + "nodes.disruption_limits:DisruptionLimits.weigh", lambda *_, **__: ""),
        swap(CORRECT + "nodes.disruption_limits:DisruptionLimits.admits", lambda *_: True),
        swap(CORRECT + "nodes.controller:NodesController._fence", lambda *_: (NodeAction.FENCE, 0)),
    ),
    bug(
        SMALL,
        "sc14.stable",
        "an agent that has failed once renews more often from then on",
        rewrite(
            AGENT + "heartbeats:NodeHeartbeats.due",
            "now_ms + self._every_ms",
            "now_ms + (2_000 if self._failures else self._every_ms)",
        ),
        rewrite(AGENT + "heartbeats:NodeHeartbeats.answered", "self._failures = 0", "pass"),
    ),
)
BUGS = (*FIRST, *OTHERS)
