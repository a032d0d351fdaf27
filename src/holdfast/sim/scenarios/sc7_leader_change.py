"""A leader stalls during placement, another takes over, and the first one resumes and writes.

Scheduler A leads under epoch 1842. Six replicas become schedulable at once; A sends some of their
binds and is paused before the others, for longer than its lease. B takes over under 1843 and binds
the rest. When A resumes, it sends the rest of its batch as it decided long before. On half of the
seeds A's clock stops as well, as under a hypervisor, so that A cannot notice the pause.
"""

from __future__ import annotations

import msgspec

from holdfast.commit.record_encoding import Epoch
from holdfast.model import keys
from holdfast.model.read_requests import Get
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Accepted, AcquireLease, Bind
from holdfast.model.transaction import Put, Transaction
from holdfast.sim.planes.scheduler_taps import AnswerReceived, Stall
from holdfast.sim.randomness import between, pick
from holdfast.sim.run import Scenario
from holdfast.sim.scenarios.example_plane import ExamplePlane
from holdfast.sim.scenarios.people import workload_act
from holdfast.sim.scenarios.run_log import Bound, LogEntry, RunLog
from holdfast.sim.scenarios.sentences import Sentence, demand
from holdfast.sim.world import World

SCOPE = "scheduler:main"
EPOCH, NEXT_EPOCH = 1842, 1843
NODE = "node-a"
REPLICAS = 6
WANTED_AT_MS, OPENED_AT_MS, END_MS = 12_000, 16_000, 90_000
A, B = "a", "b"
_NAME_OF_A, _NAME_OF_B = f"system:scheduler:{A}", f"system:scheduler:{B}"
# Requests that change nothing.
_READS = (Get,)


def build(world: World) -> None:
    plane = ExamplePlane(world)
    # The scope had other holders before.
    past = msgspec.json.encode(Epoch(epoch=EPOCH - 1, holder="system:scheduler:of-old"))
    plane.keyspace.txn(Transaction((), (Put(keys.epoch(SCOPE), past),)))
    stall = Stall(between(plane.rng, 27_000, 45_000), pick(plane.rng, (False, True)))
    plane.scheduler(A, scope=SCOPE, stall=(between(plane.rng, 1, REPLICAS - 2), stall))
    # B starts when A is the leader.
    plane.at(5_000, lambda _world: _add_b(plane))
    plane.node(NODE)
    plane.act(8_000, {"do": "cordon", "node": NODE})
    plane.act(WANTED_AT_MS, workload_act("search-index", "search", replicas=REPLICAS))
    plane.act(OPENED_AT_MS, {"do": "uncordon", "node": NODE})
    plane.ready(SENTENCES)


def _add_b(plane: ExamplePlane) -> None:
    plane.scheduler(B, scope=SCOPE)


# The sentences ------------------------------------------------------------------------------------


def _takeover(log: RunLog) -> LogEntry:
    """When B received its lease."""
    found = log.all(
        AnswerReceived,
        lambda it: (
            it.who == B
            and isinstance(it.request, AcquireLease)
            and not isinstance(it.answer, Refusal | Exception)
        ),
    )
    demand(found, "B never took over")
    return found[0]


def _epochs_are_used(log: RunLog) -> str:
    epochs = {it.what.replica.status.binding.epoch for it in log.all(Bound)}
    demand(epochs == {EPOCH, NEXT_EPOCH}, f"work was bound under {sorted(epochs)}")
    taken = _takeover(log).what.answer.objects[0].spec
    demand((taken.epoch, taken.holder) == (NEXT_EPOCH, _NAME_OF_B), f"{taken} holds the lease")
    return f"A bound under {EPOCH}, B took over under {NEXT_EPOCH}"


def _late_writes_are_refused(log: RunLog) -> str:
    taken = _takeover(log)
    taken_ms = taken.at_ms
    answers = log.all(AnswerReceived, lambda it: it.who == A and not isinstance(it.request, _READS))
    # Answers that A received after it resumed, for requests that were decided after the takeover.
    # What was committed before the takeover is answered as accepted, however late.
    kept = {it.what.replica.metadata.uid for it in _bound_by_a(log)}
    late = [
        it
        for it in answers
        if it.at_ms > taken_ms and not _is_of(it, kept) and not _is_older(it, taken)
    ]
    binds = [it for it in late if isinstance(it.what.request, Bind)]
    demand(binds, "A wrote nothing after the takeover")
    for it in late:
        answer, name = it.what.answer, type(it.what.request).__name__
        demand(
            isinstance(answer, Refusal),
            f"the answer to {name} of A at {it.at_ms} ms was {answer!r}",
        )
        demand(answer.reason is Reason.STALE_EPOCH, f"{name} was refused with {answer.reason}")
    return f"{len(late)} writes of A after the takeover, {len(binds)} of them binds"


def _is_older(entry: LogEntry, taken: LogEntry) -> bool:
    """Whether it was decided before the takeover, such as a renewal just before the pause."""
    answer = entry.what.answer
    return isinstance(answer, Accepted) and answer.revision < taken.what.answer.revision


def _is_of(entry: LogEntry, uids: set[str]) -> bool:
    request = entry.what.request
    return isinstance(request, Bind) and request.target.uid in uids


def _bound_by_a(log: RunLog) -> list[LogEntry]:
    """All binds that A committed."""
    return log.all(Bound, lambda it: it.replica.status.binding.by == _NAME_OF_A)


def _bindings_are_kept(log: RunLog) -> str:
    before, taken = _bound_by_a(log), _takeover(log)
    demand(before, "A had bound nothing")
    late = [it.what.replica.name for it in before if it.at_ms > taken.at_ms]
    demand(not late, f"A bound {late} after the takeover")
    for it in before:
        now = log.replica(it.what.replica.name)
        demand(now is not None, f"{it.what.replica.name} is gone")
        binding = now.status.binding if now is not None else None
        demand(binding == it.what.replica.status.binding, f"{it.what.replica.name} was moved")
    return f"the {len(before)} bindings of A are unchanged"


def _not_repeated(log: RunLog) -> str:
    kept = {it.what.replica.metadata.uid for it in _bound_by_a(log)}
    asked = log.all(Bound, lambda it: it.replica.status.binding.by == _NAME_OF_B)
    sent = [name for it in log.entries if (name := _bind_request_of_b(it, kept))]
    demand(not sent, f"B sent binds again for {sent}")
    demand(len(kept) + len(asked) == REPLICAS, f"A bound {len(kept)}, B {len(asked)}")
    twice = [it.what.replica.name for it in log.all(Bound)]
    demand(len(set(twice)) == len(twice), f"bound twice: {twice}")
    return f"B bound the other {len(asked)} and sent no bind for A's {len(kept)}"


def _bind_request_of_b(entry: LogEntry, uids: set[str]) -> str:
    what = entry.what
    is_bs = getattr(what, "who", "") == B and isinstance(what.request, Bind)
    return what.request.target.name if is_bs and what.request.target.uid in uids else ""


SENTENCES = (
    Sentence(
        "sc7.epochs", "A leads under epoch 1842, and B takes over under 1843.", _epochs_are_used
    ),
    Sentence(
        "sc7.stale-epoch",
        "Every later write of A is refused with StaleEpoch.",
        _late_writes_are_refused,
    ),
    Sentence("sc7.kept", "What was committed before the takeover is kept.", _bindings_are_kept),
    Sentence("sc7.not-repeated", "B knows these bindings and does not repeat them.", _not_repeated),
)

SCENARIO = Scenario(
    name="holdfast.sim.scenarios.sc7_leader_change:SCENARIO",
    build=build,
    faults_ms=END_MS,
    settle_ms=20_000,
)
