"""What a Quota says of its use is what the ledger says when it is read."""

from __future__ import annotations

from holdfast.commit.records import encode
from holdfast.model import keys
from holdfast.model.ledger import QuotaLedger, TenantLimits, TenantUse
from holdfast.model.transaction import Put, Transaction
from tests.unit.host.api.api_rig import ApiRig, with_tenant

PATH = "/apis/holdfast.dev/v1/namespaces/acme/quotas"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


async def _used(rig: ApiRig, cpu: int) -> None:
    """The ledger as binds would have it."""
    use = TenantUse(hard={"cpu": cpu, "replicas": 2}, reclaimable={"memory": 1 << 30})
    ledger = QuotaLedger({"acme": TenantLimits(hard={"cpu": 8_000})}, {"acme": use})
    put = Put(keys.quota_ledger("tenant:acme"), encode(ledger))
    await rig.store.txn(Transaction((), (put,)))


def test_a_quota_shows_what_is_used_now_however_it_is_read() -> None:
    """One, many, and as a table. [A4]"""

    async def story(rig: ApiRig) -> None:
        quota = {
            "apiVersion": "holdfast.dev/v1",
            "kind": "Quota",
            "metadata": {"name": "default", "namespace": "acme"},
            "spec": {"hard": {"cpu": "8"}},
        }
        made = await rig.send("POST", PATH, quota)
        assert made.code == 201, made.body
        for cpu, shown in ((1_500, "1500m"), (3_000, "3")):
            await _used(rig, cpu)
            expected = {"hard": {"cpu": shown, "replicas": "2"}, "reclaimable": {"memory": "1Gi"}}
            one = await rig.send("GET", f"{PATH}/default")
            assert one.body["status"]["used"] == expected
            version = made.body["metadata"]["resourceVersion"]
            assert one.body["metadata"]["resourceVersion"] == version
            many = await rig.send("GET", PATH)
            assert [it["status"]["used"] for it in many.body["items"]] == [expected]
            table = await rig.send("GET", PATH, headers={"Accept": TABLE})
            (row,) = table.body["rows"]
            assert any(f"cpu={shown}" in str(cell) for cell in row["cells"][2:]), row["cells"]

    with_tenant(story)
