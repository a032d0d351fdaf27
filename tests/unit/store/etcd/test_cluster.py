"""How long one member of etcd may take for a transaction."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.model.errors import HoldfastError
from holdfast.store.etcd import cluster
from holdfast.store.etcd import messages as pb
from holdfast.store.etcd.cluster import PATIENCE_FACTOR, PATIENCE_MIN_S, CallTimeout, Cluster
from holdfast.store.etcd.config import EtcdConfig
from holdfast.store.etcd.error_meaning import ErrorMeaning
from holdfast.store.etcd.member import CallFailed, MemberChannel


def test_the_limit_follows_what_a_transaction_takes() -> None:
    """[C7.6]"""
    patience = CallTimeout()
    assert patience.limit_s == PATIENCE_MIN_S
    for _ in range(200):
        patience.sufficed(1.0)
    assert patience.limit_s == pytest.approx(PATIENCE_FACTOR, rel=0.01)


def test_the_limit_doubles_until_answers_come() -> None:
    """Otherwise a store slower than the limit would never answer again. [C7.6]"""
    patience = CallTimeout()
    patience.ran_out()
    patience.ran_out()
    assert patience.limit_s == 4 * PATIENCE_MIN_S
    patience.sufficed(0.0)
    assert patience.limit_s == PATIENCE_MIN_S


@pytest.mark.parametrize(
    "members, first_s, second_s",
    [
        # In case all members are slow, the second one has more time.
        (3, 1e-6, 2e-6),
        # Where there is no other member, it gets all the time there is.
        (1, 5.0, 5.0),
    ],
)
def test_the_next_call_goes_to_another_member(
    members: int, first_s: float, second_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When one holds a transaction for too long, and there are others. [C7.6]"""
    monkeypatch.setattr(cluster, "PATIENCE_MIN_S", 1e-6)
    asked: list[tuple[MemberChannel, float]] = []

    def held(member: MemberChannel) -> Any:
        async def call(_request: Any, left_s: float, _metadata: Any) -> Any:
            asked.append((member, left_s))
            raise CallFailed(ErrorMeaning.DOUBT, "no answer in time")

        return call

    monkeypatch.setattr(cluster, "transaction_call", held)
    monkeypatch.setattr(MemberChannel, "is_ready", lambda _member: True)

    async def story() -> None:
        made = Cluster(EtcdConfig(endpoints=tuple(f"127.0.0.1:{1 + n}" for n in range(members))))
        for _ in range(2):
            with pytest.raises(HoldfastError):
                await made.txn(pb.TxnRequest(), 5.0)
        await made.close()

    asyncio.run(story())
    assert [left_s for _, left_s in asked] == pytest.approx([first_s, second_s], rel=0.1)
    assert len({member for member, _ in asked}) == min(members, 2)
