"""What stands between etcd's watch and ours: nothing twice, nothing out of order, no silent hole.

Pure; `watching.py` feeds it every answer of the stream and hands on what comes out. Several
versions of etcd repeat events, go back in time or lose events on a watch (see `versions.py`), so
nothing that can be checked is believed:

- What is not newer than what was delivered is dropped.
- Changes of one revision are held until all of them are here: a large answer comes in fragments.
- A stream that goes back within what is new is broken, and is opened again.
- etcd counts the versions of a key. An event that does not follow the last one of its key shows
  that one was lost, and the watch is Expired: the reader lists again.
- A stream begins at the last revision that was delivered, not after it. So etcd checks that this
  one is not compacted, and the overlap shows whether that revision was delivered whole.
"""

from __future__ import annotations

import msgspec

from holdfast.model.errors import Expired
from holdfast.model.transaction import ABSENT, Change
from holdfast.store.contract import Batch
from holdfast.store.etcd import messages as pb
from holdfast.store.etcd.layout import Layout, is_bookmark

# So many keys' versions are remembered. A key beyond that is not checked, which is no worse than
# having no check at all.
VERSIONS_MAX = 65_536


class StreamBroken(Exception):
    """The stream contradicts itself. Opening another one, after what was delivered, is enough."""


class _Pending(msgspec.Struct):
    """Events of a revision whose end has not been seen."""

    revision: int
    events: list[pb.Event]


class Guard:
    """One watch's memory of what it delivered, over all the streams it used."""

    def __init__(self, layout: Layout, *, after: int) -> None:
        self._layout = layout
        self.delivered = after
        # Names that changed at `delivered`; None at the start, when others delivered it.
        self._last_names: frozenset[bytes] | None = None
        self._pending: _Pending | None = None
        self._began = after
        self._versions: dict[bytes, int] = {}
        self._forgot_versions = False

    def restart(self) -> None:
        """A new stream begins. What was held back comes again."""
        self._pending = None

    def take(self, answer: pb.WatchResponse) -> Batch | None:
        """Everything that is complete with this answer; None when that is nothing new."""
        changes: list[Change] = []
        before = self.delivered
        for event in answer.events:
            self._take_event(event, changes)
        if not answer.fragment:
            self._complete(changes)
        if self.delivered == before:
            return None
        return Batch(self.delivered, tuple(changes))

    def skip_to(self, revision: int) -> Batch:
        """A bookmark: it is known that nothing changed up to this revision."""
        if revision > self.delivered:
            self.delivered = revision
            self._last_names = frozenset()
        return Batch(self.delivered)

    def _take_event(self, event: pb.Event, changes: list[Change]) -> None:
        kv = event.kv
        revision = kv.mod_revision
        if revision <= self.delivered:
            self._check_repeat(kv)
            return
        pending = self._pending
        if pending is not None and revision != pending.revision:
            if revision < pending.revision:
                raise StreamBroken(f"revision {revision} came after {pending.revision}")
            self._complete(changes)
            pending = None
        if pending is None:
            pending = self._pending = _Pending(revision, [])
        pending.events.append(event)

    def _complete(self, changes: list[Change]) -> None:
        """The pending revision has ended: a later one began, or the answer is whole."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        changes += [self._change(e) for e in pending.events if not is_bookmark(e.kv.key)]
        self.delivered = pending.revision
        self._last_names = frozenset(event.kv.key for event in pending.events)

    def _change(self, event: pb.Event) -> Change:
        kv = event.kv
        name = kv.key
        key = self._layout.key(name)
        if event.kind == pb.EVENT_DELETE:
            self._check_version(name, 0, ABSENT)
            return Change(kv.mod_revision, key, None, ABSENT)
        created = kv.create_revision
        self._check_version(name, kv.version, created)
        return Change(kv.mod_revision, key, kv.value, created)

    def _check_repeat(self, kv: pb.KeyValue) -> None:
        if (
            kv.mod_revision == self.delivered
            and self._last_names is not None
            and kv.key not in self._last_names
        ):
            raise _hole(f"revision {self.delivered} was delivered without {kv.key!r}")

    def _check_version(self, name: bytes, version: int, created: int) -> None:
        """Version 1 follows absence, each later one its predecessor; 0 stands for a deletion."""
        known = self._versions.get(name)
        if known is None:
            # The key was last written before the watch began, unless it was created since.
            is_new = created > self._began and not self._forgot_versions
            follows = not (is_new and version > 1)
        elif version == 0:
            follows = known > 0
        else:
            follows = version == known + 1
        if not follows:
            raise _hole(f"{name!r} went from version {known} to {version}")
        self._remember(name, version)

    def _remember(self, name: bytes, version: int) -> None:
        if len(self._versions) >= VERSIONS_MAX and name not in self._versions:
            # The older half at once, so that forgetting costs a constant share of each event.
            self._versions = dict(list(self._versions.items())[VERSIONS_MAX // 2 :])
            self._forgot_versions = True
        self._versions[name] = version


def _hole(what: str) -> Expired:
    return Expired(f"etcd's watch lost an event: {what}; list again", code="WatchHole")
