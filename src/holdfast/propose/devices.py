"""Devices: which of a node's devices, and how much of which, a replica should get.

`decide.py` asks this of the node that was chosen. Whoever packed the fleet in choosing the node
chooses its devices as well, so that the place is worth what it was scored for; the bind carries the
choice and the commit decides. The picture may be old: a device that was taken meanwhile costs one
refused bind, like a node that is full.
"""

from __future__ import annotations

from holdfast.model.errors import unreachable
from holdfast.model.fit import Held, claim
from holdfast.model.refusal import Refusal
from holdfast.propose.filters.devices import is_counted
from holdfast.propose.site import Site
from holdfast.propose.standing import Standing
from holdfast.propose.view import View


def held_on(view: View, standing: Standing, site: Site) -> Held:
    """What work with devices would hold on this node, which has room for it."""
    work = standing.work
    packer = standing.packer
    chosen = packer.devices(work, view, site.row) if packer is not None else None
    if chosen is not None and is_counted(work.demand.devices):
        # The columns that were packed are those by which the node was found to do.
        return Held(charge=work.demand.amounts, devices=chosen, ports=work.demand.ports)
    held = claim(site.ledger, work.demand)
    if isinstance(held, Refusal):
        unreachable(f"node {site.name} was a candidate and does not fit: {held.message}")
    return held
