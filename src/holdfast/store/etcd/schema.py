"""The part of etcd's v3 protocol that Holdfast uses, as data, and the builder of its classes.

`messages.py` builds its classes from this table at import; `messages.pyi` declares the same for the
type checker, and a test compares the two. Nothing is generated, so neither protoc nor a build step
is needed. ADR 0023 says why.

Only names of methods, field numbers and wire types meet the server. Fields that are not listed here
are skipped when read and left at their default when sent, as protobuf promises. Enums are plain
int32 fields: the wire form is the same, and the few values have names in `messages.py`.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from holdfast.model.errors import invariant

# One line per field: number, type, name. A star marks a repeated field, a question mark a member of
# the message's only oneof, which is sent even when it holds zero.
SCHEMA = """
ResponseHeader
    1 uint64 cluster_id
    2 uint64 member_id
    3 int64 revision
    4 uint64 raft_term

KeyValue
    1 bytes key
    2 int64 create_revision
    3 int64 mod_revision
    4 int64 version
    5 bytes value

RangeRequest
    1 bytes key
    2 bytes range_end
    3 int64 limit
    4 int64 revision
    7 bool serializable
    8 bool keys_only
    9 bool count_only

RangeResponse
    1 ResponseHeader header
    2 KeyValue* kvs
    3 bool more
    4 int64 count

PutRequest
    1 bytes key
    2 bytes value

PutResponse
    1 ResponseHeader header

DeleteRangeRequest
    1 bytes key
    2 bytes range_end

DeleteRangeResponse
    1 ResponseHeader header
    2 int64 deleted

RequestOp
    1 RangeRequest? request_range
    2 PutRequest? request_put
    3 DeleteRangeRequest? request_delete_range

ResponseOp
    1 RangeResponse? response_range
    2 PutResponse? response_put
    3 DeleteRangeResponse? response_delete_range

Compare
    1 int32 result
    2 int32 target
    3 bytes key
    6 int64? mod_revision

TxnRequest
    1 Compare* compare
    2 RequestOp* success
    3 RequestOp* failure

TxnResponse
    1 ResponseHeader header
    2 bool succeeded
    3 ResponseOp* responses

CompactionRequest
    1 int64 revision
    2 bool physical

CompactionResponse
    1 ResponseHeader header

Event
    1 int32 kind
    2 KeyValue kv

WatchCreateRequest
    1 bytes key
    2 bytes range_end
    3 int64 start_revision
    8 bool fragment

WatchRequest
    1 WatchCreateRequest? create_request

WatchResponse
    1 ResponseHeader header
    2 int64 watch_id
    3 bool created
    4 bool canceled
    5 int64 compact_revision
    6 string cancel_reason
    7 bool fragment
    11 Event* events

StatusRequest

StatusResponse
    1 ResponseHeader header
    2 string version
    3 int64 dbSize
    4 uint64 leader
    8 string* errors
    9 int64 dbSizeInUse
    10 bool isLearner
    12 int64 dbSizeQuota

AlarmRequest
    1 int32 action
    2 uint64 memberID
    3 int32 alarm

AlarmMember
    1 uint64 memberID
    2 int32 alarm

AlarmResponse
    1 ResponseHeader header
    2 AlarmMember* alarms

DefragmentRequest

DefragmentResponse
    1 ResponseHeader header

SnapshotRequest

SnapshotResponse
    1 ResponseHeader header
    2 uint64 remaining_bytes
    3 bytes blob

AuthenticateRequest
    1 string name
    2 string password

AuthenticateResponse
    1 ResponseHeader header
    2 string token
"""

# A package of our own in a pool of our own: another etcd library in the same process registers the
# official names in protobuf's default pool, and two definitions of one name are refused there.
_PACKAGE = "holdfast.etcd"

_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _FIELD.TYPE_BOOL,
    "bytes": _FIELD.TYPE_BYTES,
    "int32": _FIELD.TYPE_INT32,
    "int64": _FIELD.TYPE_INT64,
    "string": _FIELD.TYPE_STRING,
    "uint64": _FIELD.TYPE_UINT64,
}


def parse(schema: str) -> dict[str, list[tuple[int, str, str]]]:
    """Messages by name, each a list of (number, type with its mark, name)."""
    messages: dict[str, list[tuple[int, str, str]]] = {}
    fields: list[tuple[int, str, str]] = []
    for line in schema.splitlines():
        words = line.split()
        if len(words) == 1:
            fields = messages[words[0]] = []
        elif words:
            number, kind, name = words
            fields.append((int(number), kind, name))
    return messages


def build_classes(schema: str) -> dict[str, Any]:
    """One protobuf class per message of the schema."""
    messages = parse(schema)
    file = descriptor_pb2.FileDescriptorProto(
        name="holdfast/etcd.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in messages.items():
        _describe(file.message_type.add(name=name), fields, messages.keys())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in messages
    }


def _describe(message: Any, fields: list[tuple[int, str, str]], names: Any) -> None:
    for number, marked, field_name in fields:
        kind = marked.rstrip("*?")
        field = message.field.add(name=field_name, number=number, label=_FIELD.LABEL_OPTIONAL)
        if kind in _SCALARS:
            field.type = _SCALARS[kind]
        else:
            invariant(kind in names, f"{message.name}.{field_name} has no such type: {kind}")
            field.type = _FIELD.TYPE_MESSAGE
            field.type_name = f".{_PACKAGE}.{kind}"
        if marked.endswith("*"):
            field.label = _FIELD.LABEL_REPEATED
        elif marked.endswith("?"):
            if not message.oneof_decl:
                message.oneof_decl.add(name="one")
            field.oneof_index = 0
