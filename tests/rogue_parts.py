"""Parts of patches by which a taken-over agent could try to get further, and how they are put
together. `tests/rogue_agent.py` draws from them.
"""

from __future__ import annotations

from typing import Any

CONDITIONS = ("Ready", "Pressure", "Drained", "Serving", "Bound", "Repairing", "Available")
# Parts of patches: one for every known way out.
PARTS: tuple[dict[str, Any], ...] = (
    {},
    {"metadata": {"labels": {"pool": "gold"}}},
    {"metadata": {"labels": None}},
    {"metadata": {"annotations": {"holdfast.dev/admission": "none"}}},
    {
        "metadata": {
            "ownerReferences": [
                {"apiVersion": "holdfast.dev/v1", "kind": "Workload", "name": "web", "uid": "u"}
            ]
        }
    },
    {"metadata": {"ownerReferences": None}},
    {"metadata": {"finalizers": []}},
    {"metadata": {"finalizers": ["example.com/hold"]}},
    {"metadata": {"finalizers": ["foregroundDeletion"]}},
    {"metadata": {"name": "another"}},
    {"metadata": {"namespace": "globex"}},
    {"metadata": {"generateName": "another-"}},
    {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
    {"metadata": {"managedFields": [{}]}},
    {"metadata": {"operations": []}},
    {"metadata": {"generation": 99}},
    {"metadata": {"uid": "00000000-0000-4000-8000-000000000000"}},
    {"metadata": {"resourceVersion": "1"}},
    {"spec": {"cordoned": True}},
    {"spec": {"taints": []}},
    {"spec": {"pool": "recovery"}},
    {"spec": {"protectedFor": {"tenants": ["acme"]}}},
    {"spec": {"capacity": {"cpu": "999"}}},
    {"spec": {"drain": {"reason": "mine"}}},
    {"spec": {"overcommit": {"cpu": 400}}},
    {"spec": {"region": "us-east"}},
    {"spec": {"replicas": 0}},
    {"spec": {"priority": 1_000}},
    {"spec": {"template": {"command": ["sh"]}}},
    {"spec": {"hard": {"cpu": "1"}}},
    {"status": {"phase": "Fenced"}},
    {"status": {"phase": "Ready", "mark": None}},
    {"status": {"incarnation": 7}},
    {"status": {"address": "https://evil:1"}},
    {"status": {"state": "Released"}},
    {"status": {"stage": "Serving"}},
    {"status": {"binding": {"node": "node-a"}}},
    {"status": {"binding": None}},
    {"status": {"transitions": []}},
    {"status": {"transitionNumber": 1}},
    {"status": {"cause": None}},
    {"status": {"process": {"restarts": 0}}},
    {"status": {"used": {}}},
    {"data": {"k": "djE="}},
    {"rules": [{"resources": ["*"], "verbs": ["*"]}]},
    *({"status": {"conditions": [{"type": it, "status": "True"}]}} for it in CONDITIONS),
)


def merged(one: dict[str, Any], two: dict[str, Any]) -> dict[str, Any]:
    found = dict(one)
    for key, value in two.items():
        both = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = merged(found[key], value) if both else value
    return found
