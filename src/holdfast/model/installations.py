"""Which installation of a node's agent ran a piece of work, and what it alone can prove.

An installation is one directory of one agent. A node's name may pass to another one after a fence:
another machine, or the same one over an empty directory. A fence proves that `stop` work has ended,
whatever installation comes next. It proves nothing about `keep` work, which runs on when it is cut
off: only the installation that ran it can say that it has stopped, or a person who has seen it.

The commit decides by this, and agents, controller:repair and `explain` read the same rules.
"""

from __future__ import annotations

from datetime import datetime

from holdfast.model.kinds.replica import Binding, Replica
from holdfast.model.kinds.template import OnDisconnect
from holdfast.model.lifecycle import State
from holdfast.model.meta import Condition, ConditionStatus, condition, with_condition

# Of `keep` work that was lost sight of: whether a copy of it may still run, and on which machine.
MAY_STILL_RUN = "MayStillRun"


def keeps(replica: Replica) -> bool:
    """Whether it runs on when its node is cut off."""
    return replica.spec.template.on_disconnect is OnDisconnect.KEEP


def ran_on(binding: Binding, installation: str) -> bool:
    """Whether this installation is the one that the work was bound to."""
    return binding.installation == installation


def proves_stop(replica: Replica, incarnation: int | None, installation: str) -> bool:
    """Whether an agent of its node's name can prove that nothing of it runs.

    Within the life that it was bound in, it can. Afterwards any later life can speak of `stop`
    work, which the fence has ended; of `keep` work only the installation that ran it can, whether
    the node's name is its own at present or not.
    """
    binding = replica.status.binding
    if binding is None:
        return False
    is_later = (incarnation or 0) > binding.node_incarnation
    if not keeps(replica):
        return is_later or incarnation == binding.node_incarnation
    if not ran_on(binding, installation):
        # Within its life an agent need not name itself; one that does must be the right one.
        return incarnation == binding.node_incarnation and not (
            installation and binding.installation
        )
    return bool(installation) or is_later or incarnation == binding.node_incarnation


def adopts(replica: Replica, incarnation: int | None, installation: str) -> bool:
    """Whether an agent in a later life of the node may take the replica into that life.

    It runs on, its installation is back, and nothing replaces it while it is Unknown.
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
    """The machine that it was bound to, in words that let a person find it."""
    name = f"the machine that was node {binding.node} in incarnation {binding.node_incarnation}"
    found = (("address", binding.address), ("installation", binding.installation))
    known = ", ".join(f"{what} {value}" for what, value in found if value)
    return f"{name} ({known})" if known else name


def contact_conditions(
    replica: Replica, to: State, conditions: tuple[Condition, ...], at: datetime, *, by_agent: bool
) -> tuple[Condition, ...]:
    """The conditions after a move, which say whether a copy may run where it cannot be seen."""
    binding = replica.status.binding
    if binding is None or not keeps(replica):
        return conditions
    if not by_agent and to in (State.UNKNOWN, State.FAILED, State.RELEASED):
        news = Condition(
            MAY_STILL_RUN,
            ConditionStatus.TRUE,
            reason="OutOfContact" if to is State.UNKNOWN else "GivenUp",
            message=f"a copy may still run on {machine_of(binding)}; it stops there once that "
            "machine is in contact again, unless it is still wanted",
        )
        return with_condition(conditions, news, at)
    if by_agent and condition(conditions, MAY_STILL_RUN) is not None:
        news = Condition(
            MAY_STILL_RUN,
            ConditionStatus.FALSE,
            reason="AgentReported",
            message=f"{machine_of(binding)} is in contact and says how it fares",
        )
        return with_condition(conditions, news, at)
    return conditions
