"""Bugs planted in the demonstration world, and benign controls.

    python -m holdfast.sim mutants tests.sim.demo.mutants:MUTANTS --record tests/sim/demo/found.json

searches for each over many seeds and records the seed that found it; the tests run that seed.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.sim.mutants import Mutant, Plant, rewrite, swap
from tests.sim.demo.world import SCENARIO

RECORDED = Path(__file__).with_name("found.json")

_COUNTER = "tests.sim.demo.counter:"
_LEASE = "tests.sim.demo.lease:"
_VIEWS = "tests.sim.demo.views:"


def _bug(name: str, mistake: str, *plants: Plant) -> Mutant:
    return Mutant(name, mistake, SCENARIO.name, plants)


def _benign(name: str, change: str, *plants: Plant) -> Mutant:
    return Mutant(name, change, SCENARIO.name, plants, benign=True)


MUTANTS = (
    _bug(
        "timeout-means-failure",
        "a server treats a lost answer as a failed write, reads and writes again",
        rewrite(
            _COUNTER + "Server._unknown",
            "return (FateOf(self._track(work), work.token, STORE_TIMEOUT_MS),)",
            "work.sender += '+'; return self._read_for(work)",
        ),
    ),
    _bug(
        "timeout-means-success",
        "a server treats a lost answer as a successful write",
        rewrite(
            _COUNTER + "Server._unknown",
            "return (FateOf(self._track(work), work.token, STORE_TIMEOUT_MS),)",
            "return self._added(work)",
        ),
    ),
    _bug(
        "check-then-write",
        "the write does not compare what the decision read",
        rewrite(_COUNTER + "Server._decide", "Transaction((compare,), ", "Transaction((), "),
    ),
    _bug(
        "operation-not-remembered",
        "completed operations are not stored next to the total",
        rewrite(
            _COUNTER + "Server._decide",
            "{**value.done, work.sender: add.operation}",
            "dict(value.done)",
        ),
    ),
    _bug(
        "acknowledged-before-commit",
        "the server answers when it has sent the write",
        rewrite(
            _COUNTER + "Server._decide",
            "work.token, STORE_TIMEOUT_MS),)",
            "work.token, STORE_TIMEOUT_MS), *self._added(work))",
        ),
    ),
    _bug(
        "refused-means-done",
        "a refused write is treated as already done",
        rewrite(
            _COUNTER + "Server._answered", "self._decide(work, current[0])", "self._added(work)"
        ),
    ),
    _bug(
        "not-applied-means-done",
        "the fate of a write is read and ignored",
        rewrite(
            _COUNTER + "Server._answered",
            "case NotApplied():\n            return self._read_for(work)",
            "case NotApplied():\n            return self._added(work)",
        ),
    ),
    _bug(
        "new-number-on-retry",
        "a client uses a new operation number for each try",
        rewrite(_COUNTER + "Client._retry", "wait_ms =", "self.memory.operation += 1; wait_ms ="),
    ),
    _bug(
        "number-forgotten-on-restart",
        "a client that restarts uses a new operation number for its open intent",
        rewrite(
            _COUNTER + "Client.step",
            "type=Memory)",
            "type=Memory); self.memory.operation += 1",
        ),
    ),
    _bug(
        "lost-wake-up",
        "a client does not retry when a server is unavailable",
        rewrite(_COUNTER + "Client._answered", "return self._retry(now)", "return ()"),
    ),
    _bug(
        "deadline-from-reply",
        "the lamp's deadline is counted from when the renewal was answered",
        rewrite(_LEASE + "Keeper._held", "sent_ms + LEASE_MS", "now.monotonic_ms + LEASE_MS"),
    ),
    _bug(
        "early-takeover",
        "a keeper takes over after half of the time that a lamp may burn",
        swap(_LEASE + "TAKEOVER_MS", 5_000),
    ),
    _bug(
        "unknown-renewal-counts",
        "a renewal whose answer was lost extends the lamp",
        rewrite(
            _LEASE + "Keeper._answered",
            "isinstance(body, Committed)",
            "not isinstance(body, CompareFailed)",
        ),
    ),
    _bug(
        "takeover-without-compare",
        "a takeover does not compare the record that it waited for",
        rewrite(_LEASE + "Keeper._take", "Compare(LEASE_KEY, _version(self._lease)),", ""),
        rewrite(_LEASE + "Keeper._renew", "(Compare(LEASE_KEY, _version(self._lease)),)", "()"),
    ),
    _bug(
        "epoch-not-compared",
        "work under a lease does not compare the epoch",
        rewrite(
            _LEASE + "Keeper._work", "(Compare(EPOCH_KEY, _version(self._epoch_record)),)", "()"
        ),
    ),
    _bug(
        "epoch-not-counted",
        "a takeover keeps the epoch of the last holder",
        rewrite(_LEASE + "Keeper._take", "value.epoch + 1", "value.epoch"),
    ),
    _bug(
        "deadline-not-checked",
        "a lamp is lit though its deadline has passed",
        rewrite(
            _LEASE + "Lamps._light",
            "if effect.until_ms <= host.clock.instant(world.now_us).monotonic_ms:",
            "if False:",
        ),
    ),
    _bug(
        "no-monotone-guard",
        "a viewer shows every total it receives",
        rewrite(_VIEWS + "Viewer._show", "total.revision > self.shown.revision", "True"),
    ),
    _bug(
        "no-resync",
        "a viewer never resyncs",
        rewrite(
            _VIEWS + "Viewer._resync",
            'return (ask, Wake("resync", now.monotonic_ms + RESYNC_MS))',
            "return (ask,)",
        ),
    ),
    _bug(
        "expired-watch-resumed",
        "a follower whose watch expired continues from the newest revision without a list",
        rewrite(
            _VIEWS + "Follower._apply",
            "self.revision = batch.revision",
            "self.revision = max(self.revision, batch.revision)",
        ),
        rewrite(
            _VIEWS + "Follower.step",
            "self.cache = {record.key: record.value for record in page.records}",
            "self.cache = self.cache or {r.key: r.value for r in page.records}",
        ),
    ),
    _benign(
        "slow-retry",
        "clients wait three times as long before a retry",
        swap(_COUNTER + "BACKOFF_MS", 1_500),
    ),
    _benign(
        "read-before-fate",
        "a server whose answer was lost reads the total even if the write was applied",
        rewrite(
            _COUNTER + "Server._answered",
            "case Committed() | TokenApplied():",
            "case TokenApplied():\n            return self._read_for(work)\n"
            "        case Committed():",
        ),
    ),
    _benign(
        "late-takeover",
        "keepers wait a quarter longer before they take over",
        swap(_LEASE + "TAKEOVER_MS", 12_600),
    ),
    _benign(
        "eager-resync",
        "viewers resync twice as often",
        swap(_VIEWS + "RESYNC_MS", 5_000),
    ),
    _benign(
        "persist-twice",
        "clients persist each state twice",
        rewrite(
            _COUNTER + "Client._answered",
            "(self._persist(), done,",
            "(self._persist(), self._persist(), done,",
        ),
    ),
)
