"""Validates nodes: the capacity of a machine, and how much of it may be allocated."""

from __future__ import annotations

from holdfast.model.kinds.node import Device, Node, NodeSpec, Protection
from holdfast.model.quantity import Resource
from holdfast.model.validation import amounts, names, text
from holdfast.model.validation.findings import FieldPath
from holdfast.model.validation.placement import taints

DEVICES_MAX = 1024
IMAGES_MAX = 1024
NOTES_MAX = 16
# The greatest overcommit, in per cent. Beyond ten times the cores, no work there would get what it
# requests; work that lacks memory is killed, so memory has a tenth of headroom and a low bound.
OVERCOMMIT_MAX = {Resource.CPU.value: 1000, Resource.MEMORY.value: 150}
TENANTS_MAX = 1024


def node(obj: Node, at: FieldPath) -> None:
    spec, at = obj.spec, at["spec"]
    for field, value in (("region", spec.region), ("zone", spec.zone)):
        names.optional_name(at[field], value)
    names.name(at["pool"], spec.pool)
    _capacity(at, spec)
    _devices(at["devices"], spec.devices)
    if spec.port_share is not None and spec.port_share.index >= spec.port_share.of:
        at["portShare"]["index"].wrong(spec.port_share.index, "must be less than `of`")
    _overcommit(at["overcommit"], spec)
    taints(at["taints"], spec.taints)
    if spec.drain is not None:
        text.sentence(at["drain"]["reason"], spec.drain.reason)
    if spec.protected_for is not None:
        protection(at["protectedFor"], spec.protected_for)
    amounts.read_capacity(at["costPerHour"], Resource.CPU, spec.cost_per_hour)


def _capacity(at: FieldPath, spec: NodeSpec) -> None:
    have = amounts.table(at["capacity"], spec.capacity)
    for resource in have:
        if resource not in amounts.RESOURCES:
            at["capacity"].entry(resource).wrong(
                resource, "must be a plain resource; devices are listed under spec.devices"
            )
    kept = amounts.table(at["reserved"], spec.reserved)
    for resource, units in kept.items():
        if units > have.get(resource, 0):
            at["reserved"].entry(resource).wrong(
                spec.reserved[resource], "must be at most the capacity"
            )


def _devices(at: FieldPath, devices: tuple[Device, ...]) -> None:
    if not names.at_most(at, devices, DEVICES_MAX):
        return
    for index, device in enumerate(devices):
        text.token(at[index]["id"], device.id)
        amounts.device_class(at[index]["deviceClass"], device.device_class)
        text.sentence(at[index]["model"], device.model, limit=names.DOTTED_MAX)
        amounts.read_capacity(at[index]["memory"], Resource.MEMORY, device.memory)
    names.unique(at, [device.id for device in devices], "id")


def _overcommit(at: FieldPath, spec: NodeSpec) -> None:
    """Refuses overcommit of what makes work fail where it is lacking, and on protected nodes:
    critical work recovers there.
    """
    devices = {device.device_class for device in spec.devices}
    for resource, percent in spec.overcommit.items():
        place = at.entry(resource)
        if resource in devices:
            rule = "must be left out: a device is divided by `share`, and no part is promised twice"
            place.wrong(percent, rule)
            continue
        if resource not in spec.capacity:
            place.wrong(resource, "must be a resource of the node's capacity")
        most = OVERCOMMIT_MAX.get(resource, 100)
        if spec.protected_for is not None and percent > 100:
            place.wrong(percent, "must be at most 100 on a protected node")
        elif not 1 <= percent <= most:
            place.wrong(percent, f"must be from 1 to {most} per cent")


def protection(at: FieldPath, of: Protection) -> None:
    """Checks a protection: it must name a tenant or a class, or it would have no effect."""
    names.names(at["tenants"], of.tenants, TENANTS_MAX)
    names.names(at["priorityClasses"], of.priority_classes, TENANTS_MAX)
    if not of.tenants and not of.priority_classes:
        at.wrong(None, "must name tenants or priority classes")


def node_status(obj: Node, at: FieldPath) -> None:
    names.at_most(at["status"]["images"], obj.status.images, IMAGES_MAX)
    notes = obj.status.isolation_notes
    if names.at_most(at["status"]["isolationNotes"], notes, NOTES_MAX):
        for index, note in enumerate(notes):
            text.sentence(at["status"]["isolationNotes"][index], note)
    mark = obj.status.mark
    if mark is not None and mark.number > obj.status.marks:
        at["status"]["marks"].wrong(obj.status.marks, "must include the present mark")


def node_update(old: Node, new: Node, at: FieldPath) -> None:
    """Marks and incarnations only grow, or an old agent could act as the new one."""
    for field, before, after in (
        ("incarnation", old.status.incarnation, new.status.incarnation),
        ("marks", old.status.marks, new.status.marks),
    ):
        if after < before:
            at["status"][field].wrong(after, f"must not fall below {before}")
