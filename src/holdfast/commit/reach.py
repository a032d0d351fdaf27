"""Whether something is ever open to somebody, whatever his roles say: the other half of a review.

Roles say what a person may ask for, `writers` and the table of requests who owns what is asked for.
A person who may do everything still makes no replica and binds none. Access reviews ask both, so
that `kubectl auth can-i` says what would really happen.
"""

from __future__ import annotations

from holdfast.commit.writers import WRITERS
from holdfast.model.identity import Identity, acts_as
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import CAUSE_OWNER, TRANSITIONS, Actor
from holdfast.model.registry import Kind
from holdfast.model.rights import Deed

_STATUS, _SCALE = "status", "scale"
_CREATE, _DELETE = ("create",), ("delete", "deletecollection")
_CHANGE = ("update", "patch")
# Who moves a replica, and who has it stopped; every other such request is a component's.
_MOVERS = tuple(dict.fromkeys(actor for row in TRANSITIONS for actor in row.actors))
_PARTS: dict[str, tuple[Actor, ...]] = {
    "state": _MOVERS,
    "eviction": tuple(CAUSE_OWNER.values()),
    # Looking into work is for people: no component needs it, and an agent has its own at hand.
    "log": (Actor.USER,),
    "exec": (Actor.USER,),
}


def owners(kind: Kind, deed: Deed) -> tuple[Actor, ...] | None:
    """Who can ever do this to an object of the kind; None where that is for the roles alone."""
    writers = WRITERS[kind.struct]
    if deed.subresource == _STATUS and deed.verb in _CHANGE:
        return tuple(dict.fromkeys((*writers.status.values(), *writers.conditions.values())))
    if kind.struct is Replica and deed.subresource in _PARTS:
        return _PARTS[deed.subresource]
    if kind.struct is Replica and deed.subresource == "binding":
        return (Actor.SCHEDULER,)
    if deed.subresource not in ("", _SCALE):
        return None
    if deed.verb in _CREATE:
        return (*writers.spec, *writers.makers)
    if deed.verb in _CHANGE:
        # Letting go of a finalizer and disowning are writes as well: `removal.py`, `leaks.py`.
        return (*writers.spec, Actor.WORKLOAD, Actor.GARBAGE)
    if deed.verb in _DELETE:
        return (*writers.spec, *writers.removers)
    return None


def closed_to(identity: Identity, kind: Kind, deed: Deed) -> tuple[Actor, ...]:
    """Those who alone may ever do this, if this identity is none of them; otherwise nobody."""
    found = owners(kind, deed)
    if found is None or any(actor in found for actor in acts_as(identity)):
        return ()
    return found or (Actor.AUTHORITY,)
