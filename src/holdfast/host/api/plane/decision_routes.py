"""Decisions: delivered by schedulers, kept beside the store, read like any other kind.

`kubectl get decisions` lists them, the newest first. Only schedulers deliver decisions, each only
its own, and no caller can change or delete one. There is no watch: to follow a replica, watch the
replica.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

import msgspec
from aiohttp import web

from holdfast.explain.decision_object import decision_of
from holdfast.host.api.call import Call, Route, bad, reply
from holdfast.host.api.objects import presentation
from holdfast.host.api.objects.bodies import demand_json
from holdfast.host.api.objects.presentation import ListMetadata, Rendering
from holdfast.host.api.objects.scope import selection, visible
from holdfast.host.client.paths import GROUP
from holdfast.host.server.decision_archive import Decisions
from holdfast.host.server.explaining import replay_round
from holdfast.model.access.identity import acts_as
from holdfast.model.access.rights import Permission
from holdfast.model.encoding import wire
from holdfast.model.encoding.problems import describe_error, excerpt, malformed_error
from holdfast.model.encoding.resource_versions import complete_version
from holdfast.model.errors import Forbidden, Missing, Unavailable
from holdfast.model.kinds.decision import Decision
from holdfast.model.lifecycle import Actor
from holdfast.model.refusal import Reason
from holdfast.model.registry import kind_of_struct
from holdfast.observe.entries import EntryReader, ObjectEntry
from holdfast.propose.decision_rounds import Case, DecisionRound, round_of_name

# The longest page; a longer list states where it goes on.
LIMIT_MAX = 500
# Cases that are read at once, and how often: a selector may leave out most of what is read.
CASES_READ = 64
READS_MAX = 64
# Decisions that are examined for one response, since other requests wait meanwhile.
LOOKED_AT_MAX = 2_000
TOKEN_MAX = 256
# The largest delivery: more rounds than a scheduler collects.
ROUNDS_MAX = 10_000
_KIND = kind_of_struct(Decision)


class _Delivery(msgspec.Struct):
    rounds: list[DecisionRound] = []
    lost: int = 0


class _Token(msgspec.Struct, frozen=True, array_like=True):
    """Where the next page begins: the row of a round, and which of its members is next."""

    row: int
    member: int


_DELIVERY = msgspec.json.Decoder(_Delivery)


def _kept(call: Call) -> Decisions:
    found = call.services.decisions
    if found is None:
        raise Unavailable("this server has no decision archive; ask another server")
    return found


async def keep(call: Call) -> web.StreamResponse:
    """Keep a scheduler's delivery of decisions."""
    call.demand_authenticated()
    demand_json(call)
    if Actor.SCHEDULER not in acts_as(call.identity):
        raise Forbidden("delivering decisions requires a scheduler", code=Reason.NOT_ALLOWED)
    try:
        delivery = _DELIVERY.decode(await call.body())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed_error(f"is not a delivery of decisions: {describe_error(error)}") from None
    if len(delivery.rounds) > ROUNDS_MAX:
        bad(f"rounds: must have at most {ROUNDS_MAX} items, not {len(delivery.rounds)}")
    for index, decided in enumerate(delivery.rounds):
        if decided.scheduler != call.identity.name:
            raise Forbidden(
                f"rounds[{index}].scheduler: {decided.scheduler[:80]!r} is not the sender",
                code=Reason.NOT_OWNER,
            )
        for place, case in enumerate(decided.cases):
            _demand_sense(f"rounds[{index}].cases[{place}]", case)
    kept = await _kept(call).keep(delivery.rounds, min(max(0, delivery.lost), 1 << 32))
    return reply(200, b'{"kept":%d}' % kept)


def _demand_sense(at: str, case: Case) -> None:
    """Refuse a case whose columns differ in length: it could not be read."""
    count = len(case.replicas)
    needed = (case.uids, case.numbers, case.attempts, case.revisions, case.queued, case.results)
    optional = (case.nodes, case.devices, case.generations)
    if any(len(it) != count for it in needed) or any(it and len(it) != count for it in optional):
        bad(f"{at}: its columns must have the same length")


async def get(call: Call) -> web.StreamResponse:
    """One decision."""
    call.demand("get")
    # A caller that may see none in a list gets none by name either.
    visible(call.identity, call.kind)
    meant = round_of_name(call.name)
    decided = await _kept(call).round(meant[0]) if meant is not None else None
    first = 0
    for case in decided.cases if decided is not None else ():
        number = meant[1] - first if meant is not None else -1
        if decided is not None and 0 <= number < len(case.replicas):
            if case.namespace != call.namespace:
                break
            entry = _entry(EntryReader(), decided, case, number, first + number)
            shape = call.shape
            data = entry.data
            return reply(200, presentation.one(call.route.facade, shape, _KIND, data))
        first += len(case.replicas)
    raise Missing(f"decisions {call.name!r} not found")


async def again(call: Call) -> web.StreamResponse:
    """Replay the round of a decision, and show what is decided differently now."""
    call.demand("get")
    # A replay reads everything and takes a while: one tenant must not slow down all others.
    if not call.services.rights.may(call.identity, Permission("get", "decisions", "again")):
        raise Forbidden(
            "replaying a decision requires cluster-wide permission: get decisions/again",
            code=Reason.NOT_ALLOWED,
        )
    meant = round_of_name(call.name)
    if meant is None:
        raise Missing(f"decisions {call.name!r} not found")
    kept = _kept(call)
    async with kept.again:
        found = await replay_round(call.services.store, kept, meant[0])
    return reply(200, msgspec.json.encode({"round": meant[0], "differences": found}))


def _entry(
    reader: EntryReader, decided: DecisionRound, case: Case, number: int, member: int
) -> ObjectEntry:
    value = wire.encode(decision_of(decided, case, number, member))
    # A decision never changes, so it has one version for ever.
    return reader.read(_KIND, value, max(1, decided.sequence))


async def list_(call: Call) -> web.StreamResponse:
    """List decisions, the newest first."""
    call.demand("list")
    chosen, kept = selection(call), _kept(call)
    limit = min(call.number("limit") or LIMIT_MAX, LIMIT_MAX)
    text = call.query.get("continue", "")
    at: tuple[int, int] | None = parse_token(text) if text else None
    reader, entries = EntryReader(), list[ObjectEntry]()
    newest, looked_at, more = 0, 0, False
    for _ in range(READS_MAX):
        cases = await kept.page(call.namespace, at, CASES_READ)
        for found in cases:
            newest = max(newest, found.row)
            for number in range(len(found.case.replicas)):
                member = found.first + number
                if at is not None and found.row == at[0] and member < at[1]:
                    continue
                if len(entries) == limit or looked_at == LOOKED_AT_MAX:
                    at, more = (found.row, member), True
                    break
                looked_at += 1
                entry = _entry(reader, found.round, found.case, number, member)
                if chosen.matches(entry):
                    entries.append(entry)
            if more:
                break
        if more or len(cases) < CASES_READ:
            break
        last = cases[-1]
        at, more = (last.row, last.first + len(last.case.replicas)), False
    else:
        # The bound on reads is reached without a full page: the client may go on.
        more = True
    token = _token(at) if more and at is not None else ""
    listing = ListMetadata(complete_version(newest), token, None)
    rendering = Rendering(call.route.facade, call.shape, _KIND, listing)
    return reply(200, rendering.whole([entry.data for entry in entries]))


def _token(at: tuple[int, int]) -> str:
    return urlsafe_b64encode(msgspec.json.encode(_Token(*at))).decode()


def parse_token(text: str) -> tuple[int, int]:
    """The row and the member that a page begins with. Raises Rejected."""
    try:
        token = msgspec.json.decode(urlsafe_b64decode(text[:TOKEN_MAX]), type=_Token)
    except (ValueError, msgspec.DecodeError):
        bad(f"continue: {excerpt(text)} is not a token of this server; start the list again")
    if not (0 < token.row < 1 << 62 and 0 <= token.member < 1 << 31):
        bad(f"continue: {excerpt(text)} is not a token of this server; start the list again")
    return token.row, token.member


ROUTES = (Route(f"{GROUP}/records", "POST", "record", keep),)
