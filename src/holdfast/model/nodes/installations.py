"""Which installation of a node's agent ran a replica, and what only that installation can prove.

An installation is one data directory of one agent. After a fence a node's name may pass to another
installation: another machine, or the same one with an empty directory. A fence proves that `stop`
work has ended, whichever installation comes next. It proves nothing about `keep` work, which keeps
running when cut off: only the installation that ran it, or an operator, can confirm that it
stopped.

The commit decides by these rules; agents, controller:repair and `explain` use the same.
"""

from __future__ import annotations

from datetime import datetime

from holdfast.model.kinds.replica import Binding, Replica
from holdfast.model.kinds.template import OnDisconnect
from holdfast.model.lifecycle import State
from holdfast.model.meta import Condition, ConditionStatus, condition, with_condition

# The condition of `keep` work out of contact: whether a copy may still run, and on which machine.
MAY_STILL_RUN = "MayStillRun"


def keeps(replica: Replica) -> bool:
    """Whether it keeps running when its node is cut off."""
    return replica.spec.template.on_disconnect is OnDisconnect.KEEP


def ran_on(binding: Binding, installation: str) -> bool:
    """Whether the work was bound to this installation."""
    return binding.installation == installation


def is_kept_elsewhere(replica: Replica, binding: Binding, installation: str) -> bool:
    """Whether it keeps running somewhere that is not this installation, which has its node's name
    now.
    """
    return keeps(replica) and not ran_on(binding, installation)


def awaits_adoption(replica: Replica, binding: Binding) -> bool:
    """Whether its own installation may still adopt it: it keeps running, and nobody says how."""
    is_unknown = replica.status.state is State.UNKNOWN
    return keeps(replica) and is_unknown and bool(binding.installation)


def proves_stop(replica: Replica, incarnation: int | None, installation: str) -> bool:
    """Whether an agent with its node's name can prove that nothing of it runs.

    An agent in the incarnation that it was bound to can. Any later incarnation can for `stop` work,
    which the fence has ended. For `keep` work only the installation that ran it can, whether or not
    it has the node's name at present.
    """
    binding = replica.status.binding
    if binding is None:
        return False
    is_later = (incarnation or 0) > binding.node_incarnation
    if not keeps(replica):
        return is_later or incarnation == binding.node_incarnation
    if not ran_on(binding, installation):
        # In the same incarnation an agent need not name its installation; if it does, it must
        # match.
        return incarnation == binding.node_incarnation and not (
            installation and binding.installation
        )
    return bool(installation) or is_later or incarnation == binding.node_incarnation


def adopts(replica: Replica, incarnation: int | None, installation: str) -> bool:
    """Whether an agent in a later incarnation of the node may adopt the replica.

    The replica keeps running, its installation is back, and nothing replaces it while it is
    Unknown.
    """
    binding = replica.status.binding
    return (
        binding is not None
        and keeps(replica)
        and replica.status.state is State.UNKNOWN
        and bool(installation)
        and ran_on(binding, installation)
        and (incarnation or 0) > binding.node_incarnation
    )


def machine_of(binding: Binding) -> str:
    """A description of the machine that it was bound to, by which an operator can find it."""
    name = f"the machine that was node {binding.node} in incarnation {binding.node_incarnation}"
    found = (("address", binding.address), ("installation", binding.installation))
    known = ", ".join(f"{what} {value}" for what, value in found if value)
    return f"{name} ({known})" if known else name


def contact_conditions(
    replica: Replica, to: State, conditions: tuple[Condition, ...], at: datetime, *, by_agent: bool
) -> tuple[Condition, ...]:
    """The conditions after a transition, with MayStillRun for a copy out of contact."""
    binding = replica.status.binding
    if binding is None or not keeps(replica):
        return conditions
    if not by_agent and to in (State.UNKNOWN, State.FAILED, State.RELEASED):
        update = Condition(
            MAY_STILL_RUN,
            ConditionStatus.TRUE,
            reason="OutOfContact" if to is State.UNKNOWN else "GivenUp",
            message=f"a copy may still run on {machine_of(binding)}; it stops there once that "
            "machine is back in contact, unless it is still wanted",
        )
        return with_condition(conditions, update, at)
    if by_agent and condition(conditions, MAY_STILL_RUN) is not None:
        update = Condition(
            MAY_STILL_RUN,
            ConditionStatus.FALSE,
            reason="AgentReported",
            message=f"{machine_of(binding)} is back in contact and reports the replica",
        )
        return with_condition(conditions, update, at)
    return conditions
