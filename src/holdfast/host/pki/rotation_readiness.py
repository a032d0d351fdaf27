"""Reasons against the next step of a rotation, computed from what all servers have seen.

`ca_rotation` asks before each step, and `holdfast ca status` shows the same sentences. Each names
the client that the step would disconnect, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import msgspec

from holdfast.host.pki.ca_keys import key_file
from holdfast.host.pki.trust_bundle import SHORT, RotationPhase, TrustBundle
from holdfast.host.pki.trust_seen import OBSERVE_S, ClientSort, SeenClient
from holdfast.model.access.credential_life import JOIN_LIFE_MAX_MS, TOKEN_LIFE_MAX_MS, ends_at
from holdfast.model.access.identity import NODE_PREFIX
from holdfast.model.kinds.access import Token, TokenPurpose
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.time import wall_ms

# A component that sent no request for this long is not running.
LIVE_S = 45.0
# Credentials that people and work presented within this time are likely to be used again.
RECENT_S = 600.0
# At the moment of a switch no person has a new kubeconfig, not even the administrator.
SETTLE_S = 10.0
# The most reasons that are shown.
TOLD_MAX = 50


class TrustReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one server reports about itself and the clients that it has seen.

    generation: of the bundle that it uses; -1 if it could not be asked.
    held: the authorities whose keys it has.
    observed_s: for how long it has observed the requests of this rotation.
    trouble: why it could not be asked.
    """

    server: str
    generation: int = -1
    held: tuple[str, ...] = ()
    observed_s: float = 0.0
    seen: tuple[SeenClient, ...] = ()
    trouble: str = ""


class RotationFacts:
    """The evidence for a step."""

    def __init__(
        self,
        bundle: TrustBundle,
        reports: Sequence[TrustReport],
        nodes: Sequence[Node] = (),
        tokens: Sequence[Token] = (),
        now: datetime | None = None,
    ) -> None:
        self.bundle, self.reports = bundle, tuple(reports)
        self.nodes, self.tokens = tuple(nodes), tuple(tokens)
        self.now = now if now is not None else datetime.now(UTC)
        self.authorities = bundle.fingerprints
        self.old, self.new = self.authorities[0], self.authorities[-1]


def latest_seen(reports: Iterable[TrustReport]) -> dict[tuple[str, str], SeenClient]:
    """Return what was last seen of each client; of a person, of each certificate."""
    found: dict[tuple[str, str], SeenClient] = {}
    for it in (one for report in reports for one in report.seen):
        key = (it.name, f"{it.authority}{it.trusts}" if it.sort is ClientSort.PERSON else "")
        if key not in found or found[key].at_s <= it.at_s:
            found[key] = it
    return found


def against_begin(facts: RotationFacts) -> list[str]:
    """Return why no rotation can begin now; empty if it can."""
    if facts.bundle.phase is not RotationPhase.STABLE:
        return ["a rotation is in progress already; finish or abort it first"]
    return [_unreached(it) for it in facts.reports if it.trouble]


def against_switch(facts: RotationFacts) -> list[str]:
    """Return why the new authority must not sign yet; empty if it may."""
    if facts.bundle.phase is not RotationPhase.BEGUN:
        return [_out_of_turn(facts.bundle, "switch", RotationPhase.BEGUN)]
    parts = latest_seen(facts.reports)
    found = [*_servers(facts), *_components(facts, parts, certificates=False)]
    for node in facts.nodes:
        if node.status.phase is NodePhase.READY:
            seen = parts.get((NODE_PREFIX + node.name, ""))
            found += _lagging(f"node {node.name}", seen, facts, certificates=False)
    return found


def against_finish(facts: RotationFacts) -> list[str]:
    """Return the clients that the end of the old authority would disconnect, as far as known."""
    if facts.bundle.phase not in (RotationPhase.SWITCHED, RotationPhase.FINISHING):
        return [_out_of_turn(facts.bundle, "finish", RotationPhase.SWITCHED)]
    parts = latest_seen(facts.reports)
    found = [*_servers(facts), *_components(facts, parts, certificates=True)]
    for node in facts.nodes:
        seen = parts.get((NODE_PREFIX + node.name, ""))
        why = _lagging(f"node {node.name}", seen, facts, certificates=True)
        if why and node.status.phase is not NodePhase.READY:
            state = f"node {node.name} ({node.status.phase.value})"
            why = [f"{state} has no certificate of the new authority: start it, or delete it"]
        found += why
    return [*found, *_people(facts, parts), *_work(facts, parts), *_join_tokens(facts)]


def unknown_clients(facts: RotationFacts) -> list[str]:
    """Return clients that do not say what they trust: tokens issued before the rotation."""
    begun = facts.bundle.begun
    if begun is None:
        return []
    return [
        f"token {it.namespace}/{it.name} of {it.spec.user} predates the rotation: a kubeconfig "
        "written with it trusts the old authority alone, unless `holdfast ca kubeconfig` renewed it"
        for it in facts.tokens
        if it.spec.purpose is TokenPurpose.BEARER
        and _counts(it, facts.now)
        and _is_older(it, begun)
    ]


def shorten(sentences: Sequence[str]) -> list[str]:
    """Return as many sentences as a person reads."""
    left = len(sentences) - TOLD_MAX
    return [*sentences[:TOLD_MAX], *([f"and {left} more"] if left > 0 else [])]


def _out_of_turn(bundle: TrustBundle, step: str, wanted: RotationPhase) -> str:
    return (
        f"the rotation is in the phase {bundle.phase.value!r}, and {step} follows "
        f"{wanted.value!r}; see `holdfast ca status`"
    )


def _unreached(report: TrustReport) -> str:
    return f"server {report.server} cannot be asked: {report.trouble}"


def _servers(facts: RotationFacts) -> list[str]:
    found = []
    for it in facts.reports:
        missing = [key for key in facts.authorities if key not in it.held]
        if it.trouble:
            found.append(_unreached(it))
        elif it.generation != facts.bundle.generation:
            found.append(
                f"server {it.server} uses generation {it.generation} of the trust bundle, not "
                f"{facts.bundle.generation}; if it stays so, its log says why"
            )
        elif missing:
            files = ", ".join(key_file(key) for key in missing)
            found.append(
                f"server {it.server} has no key of the authority {missing[0][:SHORT]}: copy "
                f"{files} from the pki directory of a server that has it into its own"
            )
        elif it.observed_s < OBSERVE_S:
            left_s = OBSERVE_S - it.observed_s
            found.append(f"server {it.server} observes clients for {left_s:.0f} s more; wait")
    return found


def _components(
    facts: RotationFacts, parts: dict[tuple[str, str], SeenClient], *, certificates: bool
) -> list[str]:
    found = []
    for seen in parts.values():
        is_live = facts.now.timestamp() - seen.at_s < LIVE_S
        if seen.sort is ClientSort.COMPONENT and is_live:
            found += _lagging(f"component {seen.name}", seen, facts, certificates=certificates)
    return found


def _lagging(
    what: str, seen: SeenClient | None, facts: RotationFacts, *, certificates: bool
) -> list[str]:
    if seen is None:
        return [f"{what} has sent no request since the rotation began"]
    if seen.trusts is None:
        return [f"{what} does not say what it trusts: it runs an older version; upgrade it"]
    if facts.new[:SHORT] not in seen.trusts:
        return [f"{what} does not trust the new authority yet; it asks every 10 s"]
    if certificates and seen.authority != facts.new:
        return [f"{what} presents a certificate of the old authority: {_renewal(seen.sort)}"]
    return []


def _renewal(sort: ClientSort) -> str:
    if sort is ClientSort.NODE:
        return "its agent renews it within a minute; if not, its log says why"
    return "`holdfast up` renews it; elsewhere run `holdfast component certificate` for it again"


def _people(facts: RotationFacts, parts: dict[tuple[str, str], SeenClient]) -> list[str]:
    found = []
    since_s = facts.now.timestamp() - RECENT_S
    if facts.bundle.switched is not None:
        settled_s = facts.bundle.switched.timestamp() + SETTLE_S
        since_s = max(since_s, settled_s)
        left_s = settled_s + SETTLE_S - facts.now.timestamp()
        if left_s > 0:
            found.append(f"certificates of people are observed for {left_s:.0f} s more; wait")
    for seen in parts.values():
        if seen.sort is not ClientSort.PERSON or seen.at_s < since_s:
            continue
        when = f"{datetime.fromtimestamp(seen.at_s, UTC):%H:%M:%SZ}"
        if seen.authority == facts.old:
            found.append(
                f"user {seen.name} presented a certificate of the old authority at {when}: copy "
                "the kubeconfig from a server again, or issue a new certificate"
            )
        elif seen.trusts is not None and facts.new[:SHORT] not in seen.trusts:
            found.append(
                f"user {seen.name} trusted only the old authority at {when}: renew the kubeconfig "
                "with `holdfast ca kubeconfig`"
            )
    return found


def _work(facts: RotationFacts, parts: dict[tuple[str, str], SeenClient]) -> list[str]:
    return [
        f"work {seen.name} presented a service token of the old authority: its agent has replaced "
        "the file, which the work must read again; wait, or restart it"
        for seen in parts.values()
        if seen.sort is ClientSort.WORK
        and seen.authority == facts.old
        and facts.now.timestamp() - seen.at_s < RECENT_S
    ]


def _join_tokens(facts: RotationFacts) -> list[str]:
    begun = facts.bundle.begun
    return [
        f"join token {it.name} for {it.spec.node or 'any node'} names the old authority and is not "
        "used yet: use it, or revoke it and create another"
        for it in facts.tokens
        if it.spec.purpose is TokenPurpose.JOIN
        and it.status.used_at is None
        and _counts(it, facts.now)
        and begun is not None
        and _is_older(it, begun)
    ]


def _counts(token: Token, now: datetime) -> bool:
    life = JOIN_LIFE_MAX_MS if token.spec.purpose is TokenPurpose.JOIN else TOKEN_LIFE_MAX_MS
    ends = ends_at(token, life)
    return not token.spec.revoked and ends is not None and now < ends


def _is_older(token: Token, begun: datetime) -> bool:
    created = token.metadata.creation_timestamp
    return created is None or wall_ms(created) <= wall_ms(begun)
