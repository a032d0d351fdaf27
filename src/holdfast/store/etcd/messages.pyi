# What `messages.py` builds, for the type checker. A test compares it with the schema.

from collections.abc import Iterable, MutableSequence
from typing import Self

COMPARE_EQUAL: int
TARGET_MOD: int
EVENT_PUT: int
EVENT_DELETE: int

class _Message:
    @classmethod
    def FromString(cls, data: bytes) -> Self: ...  # noqa: N802
    def SerializeToString(self) -> bytes: ...  # noqa: N802
    def ByteSize(self) -> int: ...  # noqa: N802

class ResponseHeader(_Message):
    cluster_id: int
    member_id: int
    revision: int
    raft_term: int
    def __init__(
        self,
        *,
        cluster_id: int = ...,
        member_id: int = ...,
        revision: int = ...,
        raft_term: int = ...,
    ) -> None: ...

class KeyValue(_Message):
    key: bytes
    create_revision: int
    mod_revision: int
    version: int
    value: bytes
    def __init__(
        self,
        *,
        key: bytes = ...,
        create_revision: int = ...,
        mod_revision: int = ...,
        version: int = ...,
        value: bytes = ...,
    ) -> None: ...

class RangeRequest(_Message):
    key: bytes
    range_end: bytes
    limit: int
    revision: int
    serializable: bool
    keys_only: bool
    count_only: bool
    def __init__(
        self,
        *,
        key: bytes = ...,
        range_end: bytes = ...,
        limit: int = ...,
        revision: int = ...,
        serializable: bool = ...,
        keys_only: bool = ...,
        count_only: bool = ...,
    ) -> None: ...

class RangeResponse(_Message):
    header: ResponseHeader
    kvs: MutableSequence[KeyValue]
    more: bool
    count: int
    def __init__(
        self,
        *,
        header: ResponseHeader = ...,
        kvs: Iterable[KeyValue] = ...,
        more: bool = ...,
        count: int = ...,
    ) -> None: ...

class PutRequest(_Message):
    key: bytes
    value: bytes
    def __init__(
        self,
        *,
        key: bytes = ...,
        value: bytes = ...,
    ) -> None: ...

class PutResponse(_Message):
    header: ResponseHeader
    def __init__(
        self,
        *,
        header: ResponseHeader = ...,
    ) -> None: ...

class DeleteRangeRequest(_Message):
    key: bytes
    range_end: bytes
    def __init__(
        self,
        *,
        key: bytes = ...,
        range_end: bytes = ...,
    ) -> None: ...

class DeleteRangeResponse(_Message):
    header: ResponseHeader
    deleted: int
    def __init__(
        self,
        *,
        header: ResponseHeader = ...,
        deleted: int = ...,
    ) -> None: ...

class RequestOp(_Message):
    request_range: RangeRequest
    request_put: PutRequest
    request_delete_range: DeleteRangeRequest
    def __init__(
        self,
        *,
        request_range: RangeRequest = ...,
        request_put: PutRequest = ...,
        request_delete_range: DeleteRangeRequest = ...,
    ) -> None: ...

class ResponseOp(_Message):
    response_range: RangeResponse
    response_put: PutResponse
    response_delete_range: DeleteRangeResponse
    def __init__(
        self,
        *,
        response_range: RangeResponse = ...,
        response_put: PutResponse = ...,
        response_delete_range: DeleteRangeResponse = ...,
    ) -> None: ...

class Compare(_Message):
    result: int
    target: int
    key: bytes
    mod_revision: int
    def __init__(
        self,
        *,
        result: int = ...,
        target: int = ...,
        key: bytes = ...,
        mod_revision: int = ...,
    ) -> None: ...

class TxnRequest(_Message):
    compare: MutableSequence[Compare]
    success: MutableSequence[RequestOp]
    failure: MutableSequence[RequestOp]
    def __init__(
        self,
        *,
        compare: Iterable[Compare] = ...,
        success: Iterable[RequestOp] = ...,
        failure: Iterable[RequestOp] = ...,
    ) -> None: ...

class TxnResponse(_Message):
    header: ResponseHeader
    succeeded: bool
    responses: MutableSequence[ResponseOp]
    def __init__(
        self,
        *,
        header: ResponseHeader = ...,
        succeeded: bool = ...,
        responses: Iterable[ResponseOp] = ...,
    ) -> None: ...

class CompactionRequest(_Message):
    revision: int
    physical: bool
    def __init__(
        self,
        *,
        revision: int = ...,
        physical: bool = ...,
    ) -> None: ...

class CompactionResponse(_Message):
    header: ResponseHeader
    def __init__(
        self,
        *,
        header: ResponseHeader = ...,
    ) -> None: ...

class Event(_Message):
    kind: int
    kv: KeyValue
    def __init__(
        self,
        *,
        kind: int = ...,
        kv: KeyValue = ...,
    ) -> None: ...

class WatchCreateRequest(_Message):
    key: bytes
    range_end: bytes
    start_revision: int
    fragment: bool
    def __init__(
        self,
        *,
        key: bytes = ...,
        range_end: bytes = ...,
        start_revision: int = ...,
        fragment: bool = ...,
    ) -> None: ...

class WatchRequest(_Message):
    create_request: WatchCreateRequest
    def __init__(
        self,
        *,
        create_request: WatchCreateRequest = ...,
    ) -> None: ...

class WatchResponse(_Message):
    header: ResponseHeader
    watch_id: int
    created: bool
    canceled: bool
    compact_revision: int
    cancel_reason: str
    fragment: bool
    events: MutableSequence[Event]
    def __init__(
        self,
        *,
        header: ResponseHeader = ...,
        watch_id: int = ...,
        created: bool = ...,
        canceled: bool = ...,
        compact_revision: int = ...,
        cancel_reason: str = ...,
        fragment: bool = ...,
        events: Iterable[Event] = ...,
    ) -> None: ...

class AlarmRequest(_Message):
    action: int
    memberID: int  # noqa: N815
    alarm: int
    def __init__(
        self,
        *,
        action: int = ...,
        memberID: int = ...,  # noqa: N803
        alarm: int = ...,
    ) -> None: ...

class AlarmMember(_Message):
    memberID: int  # noqa: N815
    alarm: int
    def __init__(
        self,
        *,
        memberID: int = ...,  # noqa: N803
        alarm: int = ...,
    ) -> None: ...

class AlarmResponse(_Message):
    header: ResponseHeader
    alarms: MutableSequence[AlarmMember]
    def __init__(
        self, *, header: ResponseHeader = ..., alarms: Iterable[AlarmMember] = ...
    ) -> None: ...

class DefragmentRequest(_Message): ...

class DefragmentResponse(_Message):
    header: ResponseHeader
    def __init__(self, *, header: ResponseHeader = ...) -> None: ...

class StatusRequest(_Message): ...

class StatusResponse(_Message):
    header: ResponseHeader
    version: str
    dbSize: int  # noqa: N815
    leader: int
    errors: MutableSequence[str]
    dbSizeInUse: int  # noqa: N815
    isLearner: bool  # noqa: N815
    dbSizeQuota: int  # noqa: N815
    def __init__(
        self,
        *,
        header: ResponseHeader = ...,
        version: str = ...,
        dbSize: int = ...,  # noqa: N803
        leader: int = ...,
        errors: Iterable[str] = ...,
        dbSizeInUse: int = ...,  # noqa: N803
        isLearner: bool = ...,  # noqa: N803
        dbSizeQuota: int = ...,  # noqa: N803
    ) -> None: ...

class SnapshotRequest(_Message):
    def __init__(self) -> None: ...

class SnapshotResponse(_Message):
    header: ResponseHeader
    remaining_bytes: int
    blob: bytes
    def __init__(
        self,
        *,
        header: ResponseHeader = ...,
        remaining_bytes: int = ...,
        blob: bytes = ...,
    ) -> None: ...

class AuthenticateRequest(_Message):
    name: str
    password: str
    def __init__(
        self,
        *,
        name: str = ...,
        password: str = ...,
    ) -> None: ...

class AuthenticateResponse(_Message):
    header: ResponseHeader
    token: str
    def __init__(
        self,
        *,
        header: ResponseHeader = ...,
        token: str = ...,
    ) -> None: ...
