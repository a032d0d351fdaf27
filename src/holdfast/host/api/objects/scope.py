"""What a request selects, and how much of it this caller may see.

People and components see whatever their rights let them ask for. An agent sees its own node and
what is bound to it: the rest is left out of its lists, and is not found by name. It gets Secrets
only by name, and only those that work bound to its node refers to.
"""

from __future__ import annotations

from holdfast.agent.secret_values import secret_names
from holdfast.host.api.call import Call
from holdfast.host.api.objects import core_names
from holdfast.model.access.identity import Identity
from holdfast.model.encoding.wire import readable
from holdfast.model.errors import Forbidden
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import State
from holdfast.model.refusal import Reason
from holdfast.model.registry import Kind, kind_of_struct
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


def node_needs_secret(hub: WatchHub, node: str, namespace: str, name: str) -> bool:
    """Whether work that is bound to this node refers to this Secret, as far as the hub has seen."""
    kind = kind_of_struct(Replica)
    fields = parse_field_selector(f"status.binding.node={node}", kind.struct)
    for entry in hub.select(ObjectSelection(kind, namespace, fields=fields)):
        # Most work refers to no Secret of this name; that costs a search and no decoding.
        if name.encode() in entry.data:
            replica = readable(Replica, entry.data)
            if replica is None:
                continue
            is_over = replica.status.state is State.RELEASED
            if not is_over and name in secret_names(replica.spec.template):
                return True
    return False
