"""The network of one container: its own, with a link to the node for containers that have ports.

Called by `containers`, which runs the commands made here as parts of its script. The link is a pair
of devices, which the kernel removes when the container's namespace is gone, with an address from
198.18.0.0/15, which is routed nowhere. The name of the device decides which address is free: the
kernel allows each name once. The shim publishes ports on the node's address (shim_publish.c).
Without ports a container has only its loopback device.
"""

from __future__ import annotations

import random
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from holdfast.model.kinds.template import HttpAction, Probe, Protocol, TcpAction, Template

TOOLS = ("ip", "nsenter")
# Two addresses for each container, out of 198.18.0.0/15.
PLACES = 65_536
TRIES_MAX = 64
ADDRESS = "address"
ADDRESS_BYTES_MAX = 64
# How long a published connection that is closed in one direction may stay idle.
IDLE_MS = 300_000
# Tries in a separate namespace whether the kernel has such devices.
PROBE = "unshare --net ip link add hf-probe type veth peer name hf-other"

_INSIDE = "address add %s/31 dev eth0\\nlink set eth0 up\\nroute add default via %s\\n"


class ContainerNetwork(msgspec.Struct, frozen=True):
    """The network of one container.

    is_host: whether it uses the node's own, which only a Tenant's policy allows.
    is_reached: whether it has a link to the node.
    is_routed: whether the node forwards what it sends to other machines.
    host: the address of the node on which ports are published; `ports` are those, such as t20001.
    """

    is_host: bool = False
    is_reached: bool = False
    is_routed: bool = False
    host: str = "127.0.0.1"
    ports: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        """The text shown with the limits of the work."""
        if self.is_host:
            return "the node's"
        return "own" if self.is_reached else "none, but its loopback"

    def connect(self, box: Path) -> str:
        """The script that runc runs in the new namespace: make the pair, and record the address."""
        if self.is_host or not self.is_reached:
            return ""
        forward = "" if self.is_routed else "echo 0 > /proc/sys/net/ipv4/conf/hf-$at/forwarding"
        return "\n".join(
            (
                """pid=$(sed 's/.*"pid":\\([0-9]*\\).*/\\1/')""",
                f"at={random.randrange(PLACES)} tries=0",
                'until ip link add "hf-$at" type veth peer name eth0 netns "$pid"; do',
                f"  tries=$((tries + 1)); test $tries -lt {TRIES_MAX}",
                f"  at=$(((at + 1) % {PLACES}))",
                "done",
                "upper=198.$((18 + at / 32768)).$((at / 128 % 256)) last=$((at % 128 * 2))",
                "near=$upper.$last far=$upper.$((last + 1))",
                "for each in /proc/sys/net/ipv6/conf/hf-$at/disable_ipv6; do",
                "  if test -e $each; then echo 1 > $each; fi",
                "done",
                forward,
                'ip address add "$near/31" dev "hf-$at"',
                'ip link set "hf-$at" up',
                f'printf \'{_INSIDE}\' "$far" "$near" |',
                'nsenter --net="/proc/$pid/ns/net" ip -batch -',
                f'echo "$far" > {shlex.quote(str(box / ADDRESS))}',
            )
        )

    def publish(self, box: Path, owner: int, joins: Sequence[Path]) -> tuple[str, ...]:
        """The commands before runc: publish the ports, or end with the reason in the log.

        The process that publishes is charged to the container, by these files of its groups.
        """
        if self.is_host or not self.ports:
            return ()
        where, host = shlex.quote(str(box)), shlex.quote(self.host)
        words = shlex.join((str(IDLE_MS), *self.ports, *map(str, joins)))
        return (
            f"mkfifo {where}/said",
            f'"$SHIM" publish {owner} {host} {where}/{ADDRESS} {words} > {where}/said &',
            f"read -r said < {where}/said",
            'if test "$said" != ok; then',
            '  echo "holdfast: the ports cannot be published: $said" >&2; exit 1',
            "fi",
        )


def network(
    of: Template, numbers: Mapping[str, int], host: str, *, is_routed: bool
) -> ContainerNetwork:
    """The network of a container of this template, with these numbers of its ports."""
    words = {Protocol.TCP: "t", Protocol.UDP: "u"}
    return ContainerNetwork(
        is_host=of.host_network,
        is_reached=bool(of.ports) or _is_asked(of),
        is_routed=is_routed,
        host=host,
        ports=tuple(f"{words[port.protocol]}{numbers[port.name]}" for port in of.ports),
    )


def _is_asked(of: Template) -> bool:
    """Whether the agent probes it over the network."""
    probes: tuple[Probe | None, ...] = (
        of.probes.startup,
        of.probes.readiness,
        of.probes.liveness,
    )
    actions = [action for it in probes if it is not None for action in (it.http, it.tcp)]
    actions.append(of.pre_stop.http if of.pre_stop is not None else None)
    return any(isinstance(it, HttpAction | TcpAction) for it in actions)


def address_in(pid: int, box: Path) -> str | None:
    """The address of the container whose runc is the process `pid`; None without a network."""
    try:
        with open(f"/proc/{pid}/root{box / ADDRESS}", encoding="ascii") as file:
            return file.read(ADDRESS_BYTES_MAX).strip() or None
    except (OSError, UnicodeDecodeError):
        return None
