"""What a request selects, and how much of it this caller may see.

People and components see whatever their rights let them ask for. An agent sees its own node and
what is bound to it: the rest is left out of its lists, and is not found by name. It gets Secrets
and the records of gangs only by name, and only those that work bound to its node needs.
"""

from __future__ import annotations

from holdfast.agent.secret_values import secret_names
from holdfast.host.api.call import Call
from holdfast.host.api.objects import core_names
from holdfast.model.access.identity import Identity
from holdfast.model.encoding.wire import readable
from holdfast.model.errors import Forbidden
from holdfast.model.kind_declaration import Kind
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Intent
from holdfast.model.lifecycle import State
from holdfast.model.placement.gang import gang_record_name
from holdfast.model.refusal import Reason
from holdfast.model.registry import kind_of_struct
from holdfast.model.selection.field_selector import FieldSelector, parse_field_selector
from holdfast.model.selection.selector_text import parse_label_selector
from holdfast.observe.selection import ObjectSelection
from holdfast.observe.watch_hub import WatchHub

# The field of each kind that names its node; None where an agent may see all objects.
_NODE_FIELDS: dict[str, str | None] = {
    "nodes": "metadata.name",
    "replicas": "status.binding.node",
    "priorityclasses": None,
    "regions": None,
}


def selection(call: Call, *, named: bool = False) -> ObjectSelection:
    """The objects that a list or a watch is about; `named` adds the name of the path."""
    query, kind = call.query, call.kind
    labels = parse_label_selector(query.get("labelSelector", ""))
    asked = core_names.own_field_selector(call.route.facade, query.get("fieldSelector", ""))
    fields = parse_field_selector(asked, kind.struct)
    if named:
        fields = (*fields, *parse_field_selector(f"metadata.name={call.name}", kind.struct))
    fields = (*fields, *visible(call.identity, kind))
    return ObjectSelection(kind, call.namespace if kind.namespaced else "", labels, fields)


def visible(identity: Identity, kind: Kind) -> FieldSelector:
    """What this caller may see of a kind, as a field selector. Raises Forbidden for nothing."""
    node = identity.node
    if node is None:
        return ()
    if kind.plural not in _NODE_FIELDS:
        raise Forbidden(
            f"{identity.name} may not read {kind.plural}: an agent reads its own node and what is "
            "bound to it",
            code=Reason.NOT_ALLOWED,
        )
    field = _NODE_FIELDS[kind.plural]
    return parse_field_selector(f"{field}={node}", kind.struct) if field is not None else ()


SECRETS = "secrets"


def _secrets_of(replica: Replica) -> tuple[str, ...]:
    return secret_names(replica.spec.template)


def _records_of(replica: Replica) -> tuple[str, ...]:
    return (gang_record_name(replica.spec.gang),) if replica.spec.gang else ()


# What an agent may read by name, and what a replica bound to its node needs of it.
NEEDED = {SECRETS: _secrets_of, "reservations": _records_of}


def node_needs(hub: WatchHub, node: str, plural: str, namespace: str, name: str) -> bool:
    """Whether work that is bound to this node needs this object, as far as the hub has seen."""
    kind = kind_of_struct(Replica)
    fields = parse_field_selector(f"status.binding.node={node}", kind.struct)
    # A replica names its gang, and the record is called after that.
    needle = (name if plural == SECRETS else name.removesuffix(f"-{Intent.GANG.value}")).encode()
    for entry in hub.select(ObjectSelection(kind, namespace, fields=fields)):
        # Most work needs no object of this name; that costs a search and no decoding.
        if needle in entry.data:
            replica = readable(Replica, entry.data)
            if replica is None:
                continue
            is_over = replica.status.state is State.RELEASED
            if not is_over and name in NEEDED[plural](replica):
                return True
    return False
