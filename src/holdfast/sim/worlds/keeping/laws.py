"""What must hold of jobs, cron jobs, one per node and published addresses, after every commit."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from holdfast.model.homes import home_of
from holdfast.model.indexes import parse
from holdfast.model.jobs import COMPLETE, completions, finished
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.template import RestartPolicy
from holdfast.model.kinds.workload import Concurrency, Workload, WorkloadType
from holdfast.model.lifecycle import STAGES, Stage, State
from holdfast.model.runs import cron_of, scheduled_at
from holdfast.sim.check import Checker, Commit
from holdfast.sim.world import World
from holdfast.sim.worlds.authority.books import Books
from holdfast.sim.worlds.authority.laws import same, steps_of
from holdfast.sim.worlds.keeping.pieces import Ends, Pieces

# A picture may be so old when something is decided on it, and the decision so long on its way.
STALE_MS = 60_000
# The word for work whose agent ended between the decision to start it and the start.
UNBORN = "NeverStarted"
_READY = STAGES[STAGES.index(Stage.READY) :]


def owner_key(replica: Replica) -> str:
    """The key of a replica's workload."""
    return f"objects/workloads/{replica.namespace}/{replica.spec.workload}"


def completed(job: Workload) -> set[int]:
    """The indexes that are in a job's account."""
    spans = parse(job.status.job.completed_indexes).spans
    return {index for first, last in spans for index in range(first, last + 1)}


class Accounted(Checker):
    """Jobs: an index succeeds once, truly; the account never shrinks; an end is an end."""

    invariants = ("JOB",)

    def __init__(self, books: Books, pieces: Pieces) -> None:
        self._books, self._pieces = books, pieces
        # Indexes of which a success is written down, and the most that ever might run at once.
        self._done: dict[str, set[int]] = {}
        self._most: dict[str, int] = {}
        # How often a place was said to have failed whose work was never begun.
        self._unborn: dict[tuple[str, int], int] = {}

    def on_commit(self, world: World, commit: Commit) -> None:
        for _, old, new in self._books.changed("objects/workloads/"):
            if new is not None and new.spec.type is WorkloadType.JOB:
                self._judge(old if _is_same(old, new) else None, new)
        succeeded: list[Replica] = []
        for _, old, new in self._books.changed("objects/replicas/"):
            if new is None:
                continue
            if not same(old, new):
                self._born(new)
            moves = steps_of(old if same(old, new) else None, new)
            if any(step.to is State.SUCCEEDED for step in moves):
                succeeded.append(new)
            if any(step.to is State.FAILED and step.reason == UNBORN for step in moves):
                place = new.spec.workload_uid, new.spec.ordinal
                self._unborn[place] = self._unborn.get(place, 0) + 1
        for replica in succeeded:
            self._done.setdefault(replica.spec.workload_uid, set()).add(replica.spec.ordinal)

    def _judge(self, old: Workload | None, new: Workload) -> None:
        stated = new.spec.job.parallelism
        most = completions(new.spec) if stated is None else stated
        self._most[new.metadata.uid] = max(self._most.get(new.metadata.uid, 0), most)
        known = completed(new)
        if old is not None:
            lost = sorted(completed(old) - known)
            if lost:
                self.violated("JOB", f"{new.name} has lost its indexes {lost}")
            if finished(old) is not None and finished(new) != finished(old):
                self.violated("JOB", f"{new.name} was over, and is said to be otherwise")
        over = finished(new)
        if over is not None and over.type == COMPLETE and len(known) < completions(new.spec):
            self.violated("JOB", f"{new.name} is complete with {sorted(known)}")
        for index in sorted(known):
            if not self._ends(new, index).done:
                self.violated("JOB", f"{new.name}: index {index} counts, and never succeeded")
        # Where the agent starts it again in place, that counts whatever has ended it.
        is_strict = new.spec.template.restart is RestartPolicy.NEVER
        for text, count in new.status.job.failures.items() if is_strict else ():
            failed = self._ends(new, int(text)).failed
            failed += self._unborn.get((new.metadata.uid, int(text)), 0)
            if count > failed:
                what = f"index {text} counts {count} failures of {failed}"
                self.violated("JOB", f"{new.name}: {what}")

    def _ends(self, job: Workload, index: int) -> Ends:
        return self._pieces.ends.get((job.namespace, f"{job.name}-{index}"), Ends())

    def _born(self, replica: Replica) -> None:
        spec, name = replica.spec, replica.name
        owners = [it for it in self._books.versions(owner_key(replica)) if _owns(it, replica)]
        jobs = [it for it in owners if it.spec.type is WorkloadType.JOB]
        if not jobs:
            return
        if spec.ordinal in self._done.get(spec.workload_uid, set()):
            self.violated("JOB", f"{name} was born though its index has succeeded")
        if all(finished(it) is not None for it in jobs):
            self.violated("JOB", f"{name} was born for a job that is over")
        if all(spec.ordinal >= completions(it.spec) for it in jobs):
            self.violated("JOB", f"{name} is beyond what was asked for")
        there = [
            it
            for it in self._books.all("objects/replicas/")
            if it.spec.workload_uid == spec.workload_uid and it.status.state is not State.RELEASED
        ]
        if len(there) > self._most[spec.workload_uid]:
            most = self._most[spec.workload_uid]
            self.violated("JOB", f"{len(there)} of {spec.workload} are there, {most} may be")


class Punctual(Checker):
    """Cron jobs: one run at most for each moment of the schedule, and none beside another."""

    invariants = ("CRON",)

    def __init__(self, books: Books) -> None:
        self._books = books
        self._runs: dict[tuple[str, datetime], str] = {}

    def on_commit(self, world: World, commit: Commit) -> None:
        for _, old, new in self._books.changed("objects/workloads/"):
            owner = cron_of(new) if new is not None else None
            if owner is not None and not _is_same(old, new):
                self._born(new, owner)

    def _born(self, run: Workload, owner: Any) -> None:
        moment = scheduled_at(owner.name, run.name)
        if moment is None:
            self.violated("CRON", f"{run.name} is for no moment")
        uid = run.metadata.uid
        if self._runs.setdefault((owner.uid, moment), uid) != uid:
            self.violated("CRON", f"a second run for {moment}: {run.name}")
        crons = self._books.versions(f"objects/workloads/{run.namespace}/{owner.name}")
        mine = [it for it in crons if it.metadata.uid == owner.uid and it.spec.cron is not None]
        if not mine or all(it.spec.cron.suspend for it in mine):
            self.violated("CRON", f"{run.name} was born though its cron job rests or is gone")
        if any(it.spec.cron.concurrency is not Concurrency.FORBID for it in mine):
            return
        for other in self._books.all("objects/workloads/"):
            of = cron_of(other)
            if of is None or of.uid != owner.uid or other.metadata.uid == uid:
                continue
            key = f"objects/workloads/{other.namespace}/{other.name}"
            if all(_goes_on(it) for it in self._books.versions(key)):
                self.violated("CRON", f"{run.name} was born while {other.name} goes on")


class OnePerNode(Checker):
    """One per node: never two at a time for one node, and none anywhere else."""

    invariants = ("PERNODE",)

    def __init__(self, books: Books) -> None:
        self._books = books

    def on_commit(self, world: World, commit: Commit) -> None:
        for _, old, new in self._books.changed("objects/replicas/"):
            if new is None:
                continue
            owners = self._books.versions(owner_key(new))
            if not any(it.spec.type is WorkloadType.PER_NODE for it in owners):
                continue
            home, binding = home_of(new), new.status.binding
            if binding is not None and binding.node != home:
                self.violated("PERNODE", f"{new.name} is for {home} and on {binding.node}")
            if not same(old, new):
                self._born(new, home)

    def _born(self, replica: Replica, home: str) -> None:
        uid = replica.spec.workload_uid
        there = [
            it.name
            for it in self._books.all("objects/replicas/")
            if it.spec.workload_uid == uid
            and home_of(it) == home
            and it.status.state is not State.RELEASED
        ]
        if len(there) > 1:
            self.violated("PERNODE", f"{there} are for {home}")


class Published(Checker):
    """Addresses: only what is or was just ready is listed, and nothing serves unlisted."""

    invariants = ("SERVE",)

    def __init__(self, books: Books) -> None:
        self._books = books
        # When each replica was last ready, and when last in a list, of those that are not now.
        self._until_ms: dict[tuple[str, str], int] = {}
        self._unlisted_ms: dict[tuple[str, str], int] = {}

    def on_commit(self, world: World, commit: Commit) -> None:
        now_ms = world.now_us // 1000
        for _, old, new in self._books.changed("objects/endpoints/"):
            known = {it.replica for it in old.endpoints} if old is not None else set()
            listed = {it.replica for it in new.endpoints} if new is not None else set()
            namespace = (new or old).namespace
            for name in sorted(known - listed):
                self._unlisted_ms[namespace, name] = now_ms
            for name in sorted(listed):
                self._listed(namespace, name, now_ms)
        for _, old, new in self._books.changed("objects/replicas/"):
            if old is not None and is_ready(old):
                self._until_ms[old.namespace, old.name] = now_ms
            if new is None or not same(old, new) or new.status.stage is not Stage.SERVING:
                continue
            if old.status.stage is not Stage.SERVING:
                self._served(new, now_ms)

    def _served(self, replica: Replica, now_ms: int) -> None:
        """It is in a list, or was a moment ago: a list may change while the word is on its way."""
        lists = self._books.all("objects/endpoints/")
        mine = [it for it in lists if it.namespace == replica.namespace]
        if any(it.replica == replica.name for one in mine for it in one.endpoints):
            return
        until_ms = self._unlisted_ms.get((replica.namespace, replica.name))
        if until_ms is None or now_ms - until_ms > STALE_MS:
            self.violated("SERVE", f"{replica.name} serves, and nobody can know where")

    def _listed(self, namespace: str, name: str, now_ms: int) -> None:
        found = self._books.versions(f"objects/replicas/{namespace}/{name}")
        if any(is_ready(it) for it in found):
            return
        until_ms = self._until_ms.get((namespace, name))
        if until_ms is None:
            self.violated("SERVE", f"{name} is listed and has never been ready")
        if now_ms - until_ms > STALE_MS:
            self.violated(
                "SERVE", f"{name} is listed anew {now_ms - until_ms} ms after it was ready"
            )


def is_ready(replica: Replica) -> bool:
    """Whether it answers, as far as status says."""
    return replica.status.state is State.RUNNING and replica.status.stage in _READY


def _is_same(old: Workload | None, new: Workload | None) -> bool:
    return old is not None and new is not None and old.metadata.uid == new.metadata.uid


def _owns(workload: Workload, replica: Replica) -> bool:
    return workload.metadata.uid == replica.spec.workload_uid


def _goes_on(run: Workload) -> bool:
    return finished(run) is None and run.metadata.deletion_timestamp is None
