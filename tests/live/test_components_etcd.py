"""Components between two real servers over one real etcd: joining, renewing, one server gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.host.client import Access
from holdfast.host.client.api_client import ApiClient
from holdfast.host.pki.component_credentials import access_of, provide
from holdfast.host.pki.join_tokens import create_token
from holdfast.host.pki.node_join import join_or_load
from holdfast.model.access import identity as who
from holdfast.model.errors import Forbidden, Unavailable
from holdfast.model.kinds.node import Node, NodeSpec
from holdfast.model.meta import ObjectMeta
from holdfast.model.nodes.heartbeat import HeartbeatQuery, Renew
from holdfast.model.read_requests import Get, GetResult
from holdfast.model.requests import RegisterNode
from holdfast.observe.watch_events import SERVERS
from tests.etcd_cluster import EtcdCluster
from tests.live.process_plane import Pair
from tests.patience import STORY_S

pytestmark = pytest.mark.xdist_group("plane-etcd")
NODES, AGENT = who.controller("nodes"), who.agent("n1")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


def test_a_token_lets_in_one_key_though_each_asks_another_server(
    tmp_path: Path, cluster: EtcdCluster
) -> None:
    async def story() -> None:
        async with Pair(tmp_path, cluster, "/join/") as pair:
            async with pair.one.client() as admin:
                token = await create_token(admin, "", timedelta(hours=1))
            tries = await asyncio.gather(
                *(
                    join_or_load(
                        (pair.access_urls[n % 2],), f"n{n}", tmp_path / f"agent-{n}", token
                    )
                    for n in range(6)
                ),
                return_exceptions=True,
            )
            winners = [it for it in tries if isinstance(it, Access)]
            assert len(winners) == 1, tries
            losers = [it for it in tries if not isinstance(it, Access)]
            assert {type(it) for it in losers} == {Forbidden}, losers

    asyncio.run(asyncio.wait_for(story(), STORY_S))


def test_each_server_reports_its_nodes_and_one_server_may_be_gone(
    tmp_path: Path, cluster: EtcdCluster
) -> None:
    """[H3]"""

    async def story() -> None:
        async with Pair(tmp_path, cluster, "/heard/") as pair:
            own = pair.pki / "components"
            provide(pair.pki, own, (NODES.name, AGENT.name))
            accesses = {it.name: access_of(pair.access_urls, own, it.name) for it in (NODES, AGENT)}
            remote = ApiClient(accesses)
            node = Node(ObjectMeta(name="n1"), spec=NodeSpec(region="eu", zone="eu-a"))
            made = await remote.ask(AGENT, pair.two.url, RegisterNode(node), 10.0)
            (found,) = made.objects
            renew = Renew("n1", found.metadata.uid, found.status.incarnation)
            renewed = await remote.ask(AGENT, pair.two.url, renew, 5.0)
            assert renewed.acknowledges(renew)
            one, two = [
                await remote.ask(NODES, url, HeartbeatQuery(), 5.0) for url in pair.access_urls
            ]
            # The two tell each other whom they heard, several times a second.
            assert (one.server, one.ages_ms.keys() - {"n1"}) == ("one", set())
            assert (two.server, list(two.ages_ms)) == ("two", ["n1"])

            pair.one.kill()
            with pytest.raises(Unavailable):
                await remote.ask(NODES, pair.one.url, HeartbeatQuery(), 5.0)
            for _ in range(4):
                assert isinstance(
                    await remote.ask(NODES, SERVERS, Get("nodes", "n1"), 5.0), GetResult
                )
                assert (await remote.ask(AGENT, SERVERS, renew, 5.0)).acknowledges(renew)
            await remote.close()

    asyncio.run(asyncio.wait_for(story(), STORY_S))
