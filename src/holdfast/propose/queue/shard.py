"""A scheduler's share of the work: all tenants, some of them by name, or one shard of several.

Schedulers without a share take everything and compete; the commit keeps them safe. Shards divide
the tenants and never conflict. The scope of the lease follows from the share, so that of several
processes with the same share one is active and the others stand by. Work of a share that no process
has waits.
"""

from __future__ import annotations

import re
import zlib

import msgspec

from holdfast.model.errors import invalid_option

SHARDS_MAX = 64
TENANTS_MAX = 256
_SHARD = re.compile(r"([0-9]{1,2})/([0-9]{1,2})", re.ASCII)
_TENANT = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)


class SchedulerShare(msgspec.Struct, frozen=True):
    """See the module's docstring. `count` 0 and no tenants mean everything."""

    index: int = 0
    count: int = 0
    tenants: frozenset[str] = frozenset()

    def takes(self, tenant: str) -> bool:
        """Whether the work of this tenant belongs to this share."""
        if self.tenants:
            return tenant in self.tenants
        return not self.count or shard_of(tenant, self.count) == self.index

    def scope(self, name: str) -> str:
        """The scope of the lease for a scheduler of this name."""
        if self.tenants:
            text = ",".join(sorted(self.tenants))
            return f"scheduler:tenants-{zlib.crc32(text.encode()):08x}"
        return (
            f"scheduler:shard-{self.index}-of-{self.count}" if self.count else f"scheduler:{name}"
        )


EVERYTHING = SchedulerShare()


def shard_of(tenant: str, count: int) -> int:
    """The shard of a tenant: the same in every process and every release."""
    return zlib.crc32(tenant.encode()) % count


def parse_share(shard: str, tenants: str) -> SchedulerShare:
    """Parse the options of an operator: `0/3`, or tenant names with commas. Raises Invalid."""
    if shard and tenants:
        raise invalid_option("--shard", shard, "cannot be combined with --tenants")
    if tenants:
        names = frozenset(tenants.split(","))
        for name in sorted(names):
            if _TENANT.fullmatch(name) is None:
                raise invalid_option("--tenants", name, "must be tenant names separated by commas")
        if len(names) > TENANTS_MAX:
            raise invalid_option("--tenants", tenants, f"may name at most {TENANTS_MAX} tenants")
        return SchedulerShare(tenants=names)
    if not shard:
        return EVERYTHING
    found = _SHARD.fullmatch(shard)
    index, count = (int(found[1]), int(found[2])) if found is not None else (0, 0)
    if not 1 <= count <= SHARDS_MAX or index >= count:
        raise invalid_option(
            "--shard", shard, f"must be I/N with 0 <= I < N, and N at most {SHARDS_MAX}"
        )
    return SchedulerShare(index, count)
