"""Paths between computers."""

from __future__ import annotations

from holdfast.sim.cell import Host
from holdfast.sim.virtual_clock import HostClock
from holdfast.sim.virtual_network import LOCAL_US, REGION_US, Network, Path, PathFault


class _Net:
    def __init__(self) -> None:
        self.injected: list[str] = []
        self.network = Network(1, self.injected.append)
        self.hosts = {
            name: Host(name, region, HostClock(0, 0))
            for name, region in (("a", "eu"), ("b", "eu"), ("c", "us"))
        }

    def path(self, source: str, target: str) -> Path:
        return self.network.path(self.hosts[source], self.hosts[target])

    def arrivals(self, path: Path) -> tuple[int, ...]:
        assert path.trouble is not None
        return self.network.arrivals(path, path.trouble, 0)


def test_distance_follows_from_host_and_region() -> None:
    """The same computer is near, another region is far. [N6]"""
    net = _Net()
    assert net.path("a", "a").least_us == LOCAL_US[0]
    assert net.path("a", "b").least_us == REGION_US[0]
    assert net.path("a", "c").least_us > 10 * REGION_US[0]


def test_a_delay_between_regions_can_be_stated() -> None:
    """A world can define its own geography. [N6]"""
    net = _Net()
    net.network.set_delay("eu", "us", 1_000, 5)
    assert 1_000 <= net.path("c", "a").delay_us() <= 1_005


def test_messages_overtake_each_other() -> None:
    """Each message has its own delay. [N6]"""
    path = _Net().path("a", "b")
    delays = [path.delay_us() for _ in range(100)]
    assert delays != sorted(delays)


def test_a_one_way_cut_leaves_the_other_direction_open() -> None:
    """Partial and one-way partitions differ from symmetric ones. [N6]"""
    net = _Net()
    lift = net.network.lay(PathFault("cut", frozenset("a"), None))
    assert net.path("a", "b").cut
    assert net.path("a", "c").cut
    assert not net.path("b", "a").cut
    assert not net.path("a", "a").cut
    lift()
    assert not net.path("a", "b").cut


def test_hosts_that_are_cut_off_together_reach_each_other() -> None:
    """A region that is cut off still works inside. [N6]"""
    net = _Net()
    region = frozenset(("a", "b"))
    net.network.lay(PathFault("cut", region, None))
    net.network.lay(PathFault("cut", None, region))
    assert not net.path("a", "b").cut
    assert not net.path("b", "a").cut
    assert net.path("a", "c").cut
    assert net.path("c", "b").cut


def test_overlapping_faults_are_lifted_one_by_one() -> None:
    """A path heals when its last fault does. [N6]"""
    net = _Net()
    first = net.network.lay(PathFault("cut", frozenset("a"), frozenset("b")))
    second = net.network.lay(PathFault("cut", None, frozenset("b")))
    path = net.path("a", "b")
    first()
    assert path.cut
    second()
    assert path.trouble is None


def test_loss_and_duplication_strike_the_stated_share_and_are_counted() -> None:
    """A fault counts where it takes place. [N6]"""
    net = _Net()
    path = net.path("a", "b")
    net.network.lay(PathFault("loss", frozenset("a"), frozenset("b"), 300))
    net.network.lay(PathFault("duplicate", frozenset("a"), frozenset("b"), 500))
    copies = [len(net.arrivals(path)) for _ in range(4_000)]
    lost, doubled = copies.count(0), copies.count(2)
    assert 1_000 < lost < 1_400
    assert 1_200 < doubled < 1_600
    assert net.injected.count("loss") == lost
    assert net.injected.count("duplicate") == doubled


def test_delay_adds_to_every_message_and_scatter_to_each_its_own() -> None:
    """Scatter reorders messages. [N6]"""
    net = _Net()
    path = net.path("a", "b")
    lift = net.network.lay(PathFault("delay", None, None, 1_000))
    assert all(net.arrivals(path)[0] >= 1_000_000 for _ in range(50))
    lift()
    net.network.lay(PathFault("scatter", None, None, 1_000))
    spread = [net.arrivals(path)[0] for _ in range(200)]
    assert min(spread) < 200_000
    assert max(spread) > 800_000


def test_what_one_host_sends_does_not_shift_the_delays_of_another() -> None:
    """One stream per sender keeps a plan's runs alike when a fault is left out. [N6]"""
    quiet, busy = _Net(), _Net()
    for _ in range(10):
        busy.path("b", "a").delay_us()
    assert quiet.path("a", "b").delay_us() == busy.path("a", "b").delay_us()
