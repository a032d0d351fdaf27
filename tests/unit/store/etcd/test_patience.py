"""How long one member of etcd may take for a transaction."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.model.errors import OutcomeUnknown
from holdfast.store.etcd import cluster
from holdfast.store.etcd import messages as pb
from holdfast.store.etcd.cluster import PATIENCE_FACTOR, PATIENCE_MIN_S, Cluster, Patience
from holdfast.store.etcd.config import EtcdConfig


def test_the_limit_follows_what_a_transaction_takes() -> None:
    """[K3]"""
    patience = Patience()
    assert patience.limit_s == PATIENCE_MIN_S
    for _ in range(200):
        patience.sufficed(1.0)
    assert patience.limit_s == pytest.approx(PATIENCE_FACTOR, rel=0.01)


def test_where_all_has_become_slow_the_limit_doubles_until_answers_come() -> None:
    """Else a store that takes longer than the limit would never answer again. [K3, N1.1]"""
    patience = Patience()
    patience.ran_out()
    patience.ran_out()
    assert patience.limit_s == 4 * PATIENCE_MIN_S


@pytest.mark.parametrize("members", [1, 3])
def test_a_member_that_holds_a_transaction_is_given_up_if_there_are_others(
    members: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single one gets the whole time of the call. [K3, N1.1]"""
    given: list[float] = []
    monkeypatch.setattr(cluster, "PATIENCE_MIN_S", 0.01)

    async def held(*args: Any, **more: Any) -> Any:
        given.append(args[2])
        raise OutcomeUnknown("no answer")

    async def story() -> None:
        made = Cluster(EtcdConfig(endpoints=tuple(f"127.0.0.1:{1 + n}" for n in range(members))))
        monkeypatch.setattr(made, "_call", held)
        with pytest.raises(OutcomeUnknown):
            await made.txn(pb.TxnRequest(), 0.2)
        await made.close()

    asyncio.run(story())
    assert given == [0.2 if members == 1 else 0.01]
