"""The wire format: decoding and encoding a replica of 1.5 KB, and the dearest hostile document."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import msgspec

from bench.harness import figure, side_by_side
from holdfast.model.encoding.wire import decode, encode, prepare
from holdfast.model.errors import Invalid
from holdfast.model.kinds.placement import Placement, Spread
from holdfast.model.kinds.replica import (
    Binding,
    Process,
    Replica,
    ReplicaSpec,
    ReplicaStatus,
    TransitionRecord,
)
from holdfast.model.kinds.template import (
    EnvVar,
    HttpAction,
    Port,
    Probe,
    Probes,
    Resources,
    SecretRef,
    Template,
)
from holdfast.model.lifecycle import Stage, State
from holdfast.model.meta import Condition, ConditionStatus, ObjectMeta, OwnerReference
from holdfast.model.registry import kind_named
from holdfast.model.validation import validate
from tests.hostile import DOCUMENTS, Hostile

# The size of an ordinary object on the wire; the figures are for this size.
BYTES_WANTED = range(1_400, 1_600)
# Noise only adds to the CPU time of a call, so the best of a few is the cost.
HOSTILE_SAMPLES = 3


def replica() -> Replica:
    """A running replica as an agent reports it."""
    at = datetime(2027, 5, 1, 12, 0, tzinfo=UTC)
    uid = "0b0c7bd8-7d4e-4e0f-9a49-5f1f6c3c2b1a"
    template = Template(
        command=("/usr/bin/risk-api", "--listen", "$(PORT_HTTP)"),
        env=(EnvVar("LOG_LEVEL", "info"), EnvVar("DB", secret=SecretRef("db", "url"))),
        ports=(Port("http"),),
        resources=Resources("500m", "256Mi"),
        placement=Placement(regions=("eu-west",), residency="eu", spread=(Spread(),)),
        probes=Probes(readiness=Probe(http=HttpAction("http", "/ready"))),
    )
    return Replica(
        metadata=ObjectMeta(
            name="risk-api-3-0",
            namespace="payments",
            uid=uid,
            resource_version="123456",
            generation=1,
            creation_timestamp=at,
            labels={"app": "risk-api"},
            owner_references=(
                OwnerReference("holdfast.dev/v1", "Workload", "risk-api", uid, True),
            ),
        ),
        spec=ReplicaSpec(
            "risk-api", uid, template, ordinal=3, revision="risk-api-1", priority=1000
        ),
        status=ReplicaStatus(
            state=State.RUNNING,
            stage=Stage.READY,
            transition_number=3,
            binding=Binding(
                node="node-a7",
                node_uid=uid,
                at=at,
                by="scheduler",
                epoch=4,
                snapshot_revision=123_400,
                charge={"cpu": 500, "memory": 268_435_456},
                token=99,
            ),
            process=Process(id="1234-99", started_at=at),
            transitions=(TransitionRecord(State.BOUND, "scheduler", at, State.PENDING, 123_400),),
            conditions=(Condition("Bound", ConditionStatus.TRUE, 1, at, "Placed"),),
        ),
    )


def as_kubectl_sends(data: bytes) -> bytes:
    """The same object with keys in alphabetical order and indented."""
    return json.dumps(json.loads(data), indent=2, sort_keys=True).encode()


def answer(document: Hostile, data: bytes) -> None:
    """All that a server does with a document until it can refuse it."""
    try:
        decoded = decode(kind_named(document.kind), data, strict=document.strict)
    except Invalid:
        return
    validate(decoded.object)


def unguarded(data: bytes) -> None:
    """The work of the bare parser on it, without any limit."""
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return


def cpu_ms(work: Any, *arguments: Any) -> float:
    best = float("inf")
    for _ in range(HOSTILE_SAMPLES):
        began = time.process_time()
        work(*arguments)
        best = min(best, 1e3 * (time.process_time() - began))
    return best


def dearest() -> tuple[float, Hostile]:
    return max(
        ((cpu_ms(answer, document, document.make()), document) for document in DOCUMENTS),
        key=lambda pair: pair[0],
    )


def main() -> None:
    prepare()
    obj = replica()
    data = encode(obj)
    if len(data) not in BYTES_WANTED:
        raise SystemExit(
            f"the replica has {len(data)} bytes; the figures are meant for {BYTES_WANTED}"
        )
    foreign = as_kubectl_sends(data)
    raw_decode = msgspec.json.Decoder(Replica).decode
    raw_encode = msgspec.json.Encoder().encode

    def us(name: str, ours: Any, peer: Any, goal: str | None, size: int) -> None:
        ours_s, peer_s = side_by_side(ours, peer)
        figure(
            name, 1e6 * ours_s, "us", peer="msgspec", peer_value=1e6 * peer_s, goal=goal, bytes=size
        )

    us(
        "model.decode_us",
        lambda: decode(Replica, data, strict=True),
        lambda: raw_decode(data),
        "<= 10",
        len(data),
    )
    us("model.encode_us", lambda: encode(obj), lambda: raw_encode(obj), "<= 5", len(data))
    us(
        "model.decode_foreign_us",
        lambda: decode(Replica, foreign, strict=True),
        lambda: raw_decode(foreign),
        None,
        len(foreign),
    )
    hostile_ms, document = dearest()
    figure(
        "model.hostile_max_ms",
        hostile_ms,
        "ms",
        peer="msgspec, unguarded",
        peer_value=cpu_ms(unguarded, document.make()),
        goal="<= 50",
        document=document.name,
        documents=len(DOCUMENTS),
    )


if __name__ == "__main__":
    main()
