"""The expected permissions: which identity may use which verb on which resource. Data only.

A row names a resource as routes do, some verbs, and all identities that may use them; all others
are refused with 403. Those in `hidden` get 404, as if the object did not exist. Objects are in the
namespace of tenant A, and of node-1. `tests/live/test_matrix.py` sends a request for every cell to
a real server, and `docs/matrix.md` is printed from here.

Identities that are not authenticated are in no row: those of TURNED_AWAY cannot complete a
handshake, those of UNKNOWN get 401 on every path that OPEN does not list.
"""

from __future__ import annotations

CONTROLLERS = (
    "autoscale",
    "drain",
    "endpoints",
    "events",
    "garbage",
    "nodes",
    "policy",
    "quota",
    "repair",
    "reserves",
    "review",
    "rollout",
    "status",
    "workload",
)

# All identities, and what defines each.
IDENTITIES: dict[str, str] = {
    "admin": "group system:masters",
    "operator": "group system:operators",
    "auditor": "group system:auditors",
    "monitor": "group system:monitoring",
    "owner-a": "bound to the role tenant-admin in the namespace of tenant A",
    "editor-a": "group tenant:team-a",
    "viewer-a": "bound to the role tenant-viewer in the namespace of tenant A",
    "editor-b": "group tenant:team-b",
    "oidc-a": "an ID token of an OpenID Connect issuer, mapped to tenant A",
    "group-a": "group tenant:team-a:editors, which no binding names",
    "work-a": "the service token of a replica of tenant A, which no binding names",
    "stranger": "known, and nothing else",
    "node-1": "system:node:n1, the node that the replica is bound to",
    "node-2": "system:node:n2, another node",
    "scheduler": "system:scheduler:one",
    "server": "system:server:two",
    **{f"controller-{it}": f"system:controller:{it}" for it in CONTROLLERS},
}

# Where only certificates count, a request with a token gets 401.
TOKENS = ("oidc-a", "work-a")
CERTIFICATES_ONLY = ("/servers", "/peers/")

UNKNOWN: dict[str, str] = {
    "anonymous": "no certificate and no token",
    "no-token": "a bearer token that never existed",
    "expired-token": "an administrator's bearer token that has expired",
    "revoked-token": "an administrator's bearer token that was revoked",
    "revoked-certificate": "an administrator's certificate that was revoked",
    "no-component": "a certificate for system:controller:none, which is no component",
}

TURNED_AWAY: dict[str, str] = {
    "expired-certificate": "an administrator's certificate that has expired",
    "other-authority": "an administrator's certificate of another authority",
    "wrong-usage": "an administrator's certificate for servers, not for clients",
}

GROUPS: dict[str, str] = {
    "controllers": " ".join(f"controller-{it}" for it in CONTROLLERS),
    "components": "scheduler server controllers",
    "readers": "operator auditor admin",
    "editors": "owner-a editor-a oidc-a",
    "tenants": "editors viewer-a",
    "nodes": "node-1 node-2",
    # The writers of a workload's status.
    "observers": " ".join(
        f"controller-{it}"
        for it in ("autoscale", "repair", "reserves", "rollout", "status", "workload")
    ),
    # The components that release reservations.
    "droppers": "controller-garbage controller-repair controller-reserves",
    # The holders of leases; and administrators, who have the permission and hold none.
    "holders": "scheduler server controllers admin",
    "known": " ".join(IDENTITIES),
    "everyone": f"known {' '.join(UNKNOWN)}",
}

# resource | verbs | allowed | hidden from
ROWS = """
# Work
workloads | get list watch | tenants readers components
workloads | list-all watch-all | readers components
workloads | create | editors admin | controller-workload
workloads | deletecollection | editors admin
workloads | update patch | editors admin
workloads | delete | editors admin
workloads/status | get | tenants readers server
workloads/status | update patch | scheduler observers
workloads/scale | get | tenants readers server
workloads/scale | update patch | editors operator admin
replicas | get | tenants readers components node-1 | node-2
replicas | list watch | tenants readers components nodes
replicas | list-all watch-all | readers components nodes
replicas | create | controller-workload
replicas | update patch |
replicas | delete | editors operator admin controller-workload
replicas | deletecollection | admin
replicas/status | get | tenants readers server
replicas/status | update patch | scheduler node-1 controller-endpoints controller-repair | node-2
replicas/binding | create | scheduler | nodes
replicas/token | create | node-1 | node-2
replicas/log | get | tenants readers server
replicas/explanation | get | tenants readers server
replicas/exec | create | editors admin
v1/pods | get | tenants readers components node-1 | node-2
v1/pods | list watch | tenants readers components nodes
v1/pods | list-all watch-all | readers components nodes
v1/pods/log | get | tenants readers server
v1/pods/exec | create | editors admin
reservations | get | tenants readers components | node-1 node-2
reservations | list watch | tenants readers components
reservations | list-all watch-all | readers components
reservations | create update patch delete deletecollection |
reservations/status | get | readers server
reservations/status | update patch |
workloadrevisions | get list watch | tenants readers components
workloadrevisions | list-all watch-all | readers components
workloadrevisions | create delete | controller-rollout
workloadrevisions | update patch deletecollection |
endpoints | get list watch | tenants readers components
endpoints | list-all watch-all | readers components
endpoints | create update delete | controller-endpoints
endpoints | patch deletecollection |
targets | list | tenants readers components monitor
targets | list-all | readers components monitor
decisions | get list | tenants readers components
decisions | list-all | readers components
decisions/again | get | operator admin server
events | get list watch | tenants readers components
events | list-all watch-all | readers components
events | create | admin scheduler server controller-events controller-garbage
events | update | admin controller-events controller-garbage
events | patch deletecollection | admin
events | delete | admin controller-garbage
v1/events | get list watch | tenants readers components
v1/events | list-all watch-all | readers components
overrides | get list watch | tenants readers components
overrides | list-all watch-all | readers components
overrides | create update patch delete deletecollection | editors operator admin
overrides/status | get | readers server
overrides/status | update patch | controller-policy
commitments | get list watch | tenants readers components
commitments | list-all watch-all | readers components
commitments | create update patch delete deletecollection | editors operator admin
commitments/status | get | readers server
commitments/status | update patch | controller-review
# Secrets and rights
secrets | get | editors admin controller-garbage server node-1 | node-2
secrets | list watch | editors admin controller-garbage server
secrets | list-all watch-all | admin controller-garbage server
secrets | create update patch delete deletecollection | editors admin
tokens | get list watch | editors readers controller-garbage server
tokens | list-all watch-all | readers controller-garbage server
tokens | create deletecollection | owner-a admin
tokens | update patch delete | owner-a operator admin
tokens/status | get | readers server
tokens/status | update | server
tokens/status | patch |
roles | get list watch | tenants readers components
roles | list-all watch-all | readers components
roles | create update | owner-a admin server
roles | patch delete deletecollection | owner-a admin
rolebindings | get list watch | tenants readers components
rolebindings | list-all watch-all | readers components
rolebindings | create update | owner-a admin server
rolebindings | patch delete deletecollection | owner-a admin
admissionpolicies | get list watch | operator auditor admin server
admissionpolicies | create update patch delete deletecollection | operator admin
revocations | get list watch | operator auditor admin server
revocations | create update patch | operator admin
revocations | delete deletecollection |
# The plane
nodes | get | readers components node-1 | node-2
nodes | list watch | readers components nodes
nodes | create update patch delete deletecollection | operator admin
nodes/status | get | readers server
nodes/status | update patch | node-1 controller-drain controller-nodes | node-2
tenants | get list watch | readers components
tenants | create update patch delete deletecollection | operator admin
tenants/status | get | readers server
tenants/status | update patch | controller-garbage
v1/namespaces | get list watch | readers components
quotas | get list watch | tenants readers components
quotas | list-all watch-all | readers components
quotas | create update patch delete deletecollection | operator admin
quotas/status | get | readers server
quotas/status | update patch | controller-quota
priorityclasses | get list watch | known
priorityclasses | create update patch delete deletecollection | operator admin
regions | get list watch | known
regions | create update patch delete deletecollection | operator admin
regions/status | get | readers server
regions/status | update patch | controller-nodes
schedulerpolicies | get list watch | readers components
schedulerpolicies | create update patch delete deletecollection | operator admin
schedulerpolicies/status | get | readers server
schedulerpolicies/status | update patch | controller-policy
grants | get list watch | readers controllers server
grants | create update patch delete deletecollection | operator admin
grants/status | get | readers server
grants/status | update patch | controller-quota
leases | get list watch | readers components
leases | create update patch delete deletecollection |
# Requests of components, each in a state where it is valid, and under an epoch that never existed
requests/Bind | request | scheduler | nodes
requests/BindTogether | request | scheduler
requests/Reserve | request | scheduler | nodes
requests/Unreserve | request | scheduler controller-repair | nodes
requests/HoldCapacity | request | scheduler controller-reserves
requests/CommitGang | request | scheduler
requests/DropReservation | request | scheduler admin droppers
requests/Evict | request | editors operator admin | nodes
requests/StopAndReserve | request | scheduler | nodes
requests/Move:Failed | request | node-1 | node-2
requests/Move:Unknown | request | controller-nodes | node-2
requests/Move:Released | request | controller-workload | nodes
requests/ReportStage:Ready | request | node-1 | node-2
requests/ReportStage:Queued | request | scheduler | node-2
requests/ReportStage:Serving | request | controller-endpoints | node-2
requests/ReportPending | request | scheduler | nodes
requests/RegisterNode | request | node-1
requests/JudgeNode | request | controller-nodes
requests/AcquireLease | request | scheduler
requests/RenewLease | request | holders
requests/ReleaseLease | request | holders
requests/RetireLease | request | server
requests/ForgetOperations | request | server controller-garbage
requests/Create | request | controller-workload
bindings | request | scheduler | nodes
terms | request | holders
# Not objects
nodes/renewals | renew | node-1
nodes/summons | attend | node-1
nodes/visits | attend | node-1
heartbeats | get | operator admin controller-nodes server
pulses | pulse | scheduler controllers
pulses | get | operator admin monitor server
records | record | scheduler
quarantine | get | operator admin server
quarantine/repairs | repair | operator admin
upgrade | get | operator admin server
upgrade/format | raise | operator admin
/apis/authorization.k8s.io/v1/selfsubjectaccessreviews | review | known
/apis/authorization.k8s.io/v1/selfsubjectrulesreviews | review | known
/apis/authorization.k8s.io/v1/subjectaccessreviews | review | auditor admin
/apis/authentication.k8s.io/v1/selfsubjectreviews | review | known
/version | discover | known
/api | discover | known
/api/v1 | discover | known
/apis | discover | known
/apis/holdfast.dev | discover | known
/apis/holdfast.dev/v1 | discover | known
/apis/authorization.k8s.io | discover | known
/apis/authorization.k8s.io/v1 | discover | known
/apis/authentication.k8s.io | discover | known
/apis/authentication.k8s.io/v1 | discover | known
/openapi/v2 | discover | known
/openapi/v3 | discover | known
/openapi/v3/apis/holdfast.dev/v1 | discover | known
/livez | use | everyone
/readyz | use | everyone
/healthz | use | everyone
/ca | use | everyone
/ca/bundle | use | everyone
/ca/rotation | use | admin
/join | use | everyone -revoked-certificate
/metrics | use | operator admin monitor
/audit | use | readers monitor
/audit/records | use | auditor admin
/audit/records?namespace=team-a | use | auditor admin owner-a server
/servers | use | known -oidc-a -work-a
/peers/forwards | use | server
/peers/heard | use | server
/peers/trust | use | server
"""
