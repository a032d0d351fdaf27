"""What really happened to jobs, cron jobs, one per node and addresses: counted, not judged."""

from __future__ import annotations

from holdfast.model.jobs import finished
from holdfast.model.kinds.workload import Workload, WorkloadType
from holdfast.model.lifecycle import Stage
from holdfast.model.runs import cron_of
from holdfast.sim.check import Commit
from holdfast.sim.world import World
from holdfast.sim.worlds.authority.laws import same, steps_of
from holdfast.sim.worlds.slice.census import Census

# What has to happen over the seeds of the default run.
DEMANDED = (
    "node marked",
    "node fenced",
    "move Unknown -> Failed",
    "replaced",
    "accepted Bind",
    "accepted Update",
    "repeated request",
    "lost answer settled by a read",
    "lease taken over by an instance of the same identity",
    "picture missed something, and the resync found it",
    "job ended: AllSucceeded",
    "job ended: RetriesExceeded",
    "job ended: FailurePolicy",
    "job ended: DeadlineExceeded",
    "job removed after its time",
    "cron run",
    "cron skipped: StillRunning",
    "cron run cleared away",
    "on a node of its own",
    "serves",
    "list written",
    "list emptied",
    "stopped: Deleted",
    "stopped: Deadline",
    "stopped: ScaleDown",
    "stopped: Rollout",
    "stopped: Drain",
    "Evict refused",
    "rollout: Progressing",
    "rollout: Idle",
)


class KeepingCensus(Census):
    """The counts of the slice, and those of this world."""

    def on_commit(self, world: World, commit: Commit) -> None:
        super().on_commit(world, commit)
        for _, old, new in self.books.changed("objects/workloads/"):
            self._workload(old, new)
        for _, old, new in self.books.changed("objects/replicas/"):
            if new is None:
                continue
            before = old if same(old, new) else None
            if before is None and new.spec.template.placement.node_selector:
                self._count("on a node of its own")
            if new.status.stage is Stage.SERVING and before is not None:
                self._count("serves", before.status.stage is not Stage.SERVING)
            for step in steps_of(before, new):
                if step.to.value == "Stopping":
                    self._count(f"stopped: {step.reason}")
        for _, old, new in self.books.changed("objects/endpoints/"):
            was = bool(old is not None and old.endpoints)
            is_now = bool(new is not None and new.endpoints)
            self._count("list written" if is_now else "list emptied", is_now or was)

    def _workload(self, old: Workload | None, new: Workload | None) -> None:
        if old is not None and new is None:
            over = finished(old)
            if over is not None:
                is_run = cron_of(old) is not None
                self._count("cron run cleared away" if is_run else "job removed after its time")
            return
        if new is None:
            return
        phase = new.status.rollout.phase
        if phase and (old is None or old.status.rollout.phase != phase):
            self._count(f"rollout: {phase.value}")
        if old is None and cron_of(new) is not None:
            self._count("cron run")
        ended, before = finished(new), finished(old) if old is not None else None
        if ended is not None and before is None:
            self._count(f"job ended: {ended.reason}")
        if new.spec.type is WorkloadType.CRON and old is not None:
            skipped = new.status.cron.last_skipped
            if skipped is not None and skipped != old.status.cron.last_skipped:
                self._count(f"cron skipped: {new.status.cron.skipped_because}")
