"""What a scorer says that packs devices: it ranks all nodes together, and names devices.

`Standing` asks for its stamp, to know when all rows have to be ranked anew; `decide.py` asks which
devices of the chosen node a replica should get, and whether the next of a run needs a new look.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from holdfast.model.kinds.replica import DeviceShare
from holdfast.propose.view import View, Work


class Packs(Protocol):
    """See the module's docstring."""

    def stamp(self, work: Work, view: View) -> Hashable:
        """Another value whenever the score of some node may be another, whichever changed."""
        ...

    def stirs(self, work: Work, view: View, row: int) -> bool:
        """Whether a placement on this row may change the scores of others."""
        ...

    def devices(self, work: Work, view: View, row: int) -> tuple[DeviceShare, ...] | None:
        """What the work should get of this node; None leaves it to the model's own choice."""
        ...
