"""`holdfast fairness`: what each tenant has, what it is entitled to, and what it is owed."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from holdfast.cli import tables
from holdfast.cli.command_table import Section
from holdfast.cli.connection import client, kubeconfig_option
from holdfast.cli.exit_codes import ExitCode, run
from holdfast.model.kinds.tenant import Quota, Tenant, TenantFairness

SECTION = Section.STATE
FORMS = ("table", "json", "yaml")
HEADING = ("TENANT", "WEIGHT", "SHARE", "ENTITLEMENT", "DEBT", "REMEMBERED", "SETTLE BY", "RECLAIM")


class FairnessRow(msgspec.Struct, frozen=True, rename="camel"):
    """One line of the answer. `reclaim` is what the tenant's cohort wants back from it."""

    tenant: str
    weight: int
    share: str = ""
    entitlement: str = ""
    debt: str = ""
    remembered: str = ""
    settle_by: str = ""
    reclaim: str = ""


@click.command(epilog="Example: holdfast fairness -o json")
@click.option("-o", "--output", type=click.Choice(FORMS), default=FORMS[0], show_default=True)
@kubeconfig_option
def fairness(output: str, kubeconfig: Path | None) -> int:
    """Show what each tenant has, what it is entitled to, and what it is owed.

    \b
    SHARE        the largest part of any resource of the plane that it holds
    ENTITLEMENT  the share that it would have if work were divided fairly now
    DEBT         the entitlement less the share; negative if it has more than its part
    REMEMBERED   the average of its share, of which half is forgotten in each half-life
    SETTLE BY    when a debt above 5 % of the entitlement is settled
    RECLAIM      what its cohort wants back of what it has borrowed, and from when on
    """

    async def command() -> int:
        async with client(kubeconfig) as to:
            tenants, quotas = await to.list(Tenant), await to.list(Quota)
        limits = {it.namespace: it for it in quotas.objects}
        found = [_row(it, limits.get(it.name)) for it in tenants.objects]
        if output == "table":
            body = [[text or "-" for text in msgspec.structs.astuple(it)] for it in found]
            print("\n".join(tables.rows(HEADING, body)) if body else "There are no tenants.")
        else:
            encode = msgspec.json.encode if output == "json" else msgspec.yaml.encode
            print(encode(found).decode().rstrip())
        return ExitCode.DONE

    return run(command())


def _row(tenant: Tenant, quota: Quota | None) -> FairnessRow:
    known = tenant.status.fairness or TenantFairness()
    notice = quota.status.reclaim if quota is not None else None
    asked = ""
    if notice is not None:
        amounts = ",".join(f"{name}={value}" for name, value in notice.amounts.items())
        asked = f"{amounts} from {notice.deadline.isoformat(timespec='seconds')}"
    return FairnessRow(
        tenant=tenant.name,
        weight=quota.spec.fairness.weight if quota is not None else 1,
        share=known.share,
        entitlement=known.entitlement,
        debt=known.debt,
        remembered=known.remembered,
        settle_by=known.settle_by.isoformat(timespec="seconds") if known.settle_by else "",
        reclaim=asked,
    )
