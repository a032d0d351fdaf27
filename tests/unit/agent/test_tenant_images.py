"""The images on a node that work of a tenant has started from, as the node's record lists them."""

from __future__ import annotations

from typing import Any

from holdfast.agent.tenant_images import KEPT_MS, LISTED_MAX, REPORT_EVERY_MS, TenantImages
from holdfast.model.kinds.template import Runtime
from holdfast.model.requests import RegisterNode
from tests.unit.agent.rig import Rig
from tests.unit.agent.running_work import asked, running, started

IMAGE = "registry.example.com/web:1"


def listed(rig: Rig) -> tuple[str, ...]:
    found: Any = rig.it.get(rig.it.node)
    images: tuple[str, ...] = found.status.images
    return images


def go_on(rig: Rig, ms: int) -> None:
    for _ in range(ms // 5_000):
        rig.wait(5_000)
        rig.settle()


def test_a_node_lists_the_image_that_work_has_started_from() -> None:
    """With the next heartbeat, and nothing more while it stays the same. [F3]"""
    rig = started()
    replica = running(rig, runtime=Runtime.CONTAINER, image=IMAGE)
    go_on(rig, 20_000)
    assert listed(rig) == (f"{replica.namespace} {IMAGE}",)
    before = len(asked(rig, RegisterNode))
    go_on(rig, 5 * REPORT_EVERY_MS)
    assert len(asked(rig, RegisterNode)) == before
    assert rig.state(replica).process.restarts == 0


def test_an_agent_that_starts_again_lists_what_its_work_uses() -> None:
    """[F3, C7.4]"""
    rig = started()
    replica = running(rig, runtime=Runtime.CONTAINER, image=IMAGE)
    rig.stop()
    rig.up()
    go_on(rig, 20_000)
    assert listed(rig) == (f"{replica.namespace} {IMAGE}",)


def test_a_directory_of_the_node_is_of_no_tenant() -> None:
    """[F3]"""
    rig = started()
    running(rig, runtime=Runtime.CONTAINER, image="/srv/images/web")
    go_on(rig, 20_000)
    assert listed(rig) == ()


def test_changes_are_reported_once_in_a_while() -> None:
    """A tenant whose work takes another image every second costs the servers no more. [E4]"""
    images = TenantImages()
    assert images.may_report(0)
    assert not images.may_report(REPORT_EVERY_MS - 1)
    assert images.may_report(REPORT_EVERY_MS)


def test_the_list_has_the_images_that_were_used_last() -> None:
    """A tenant with many images does not make the node's record grow. [B6]"""
    images = TenantImages()
    for number in range(LISTED_MAX + 5):
        images.in_use([f"acme web:{number:03}"], number)
    kept = images.in_use([], LISTED_MAX + 5)
    assert list(kept) == [f"acme web:{n:03}" for n in range(5, LISTED_MAX + 5)]


def test_an_image_that_nothing_uses_is_forgotten() -> None:
    """When its store would be removed from the disk. [F3]"""
    images = TenantImages()
    one = "acme web:1"
    assert images.in_use([one], 0) == (one,)
    assert images.in_use([], KEPT_MS - 1) == (one,)
    assert images.in_use([], KEPT_MS) == ()
