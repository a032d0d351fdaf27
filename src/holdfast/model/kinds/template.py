"""The template of a replica: its command, environment, resources, placement and lifecycle.

A Workload has one template, each Replica has a copy of it, and an agent runs a replica from that
copy alone.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from holdfast.model.kinds.placement import Isolation, Placement
from holdfast.model.meta import Count, Int, Part, Quantity, Seconds
from holdfast.model.quantity import Resource

# The key of a Secret with registry credentials, as in Kubernetes and podman.
PULL_KEY = ".dockerconfigjson"

PortNumber = Annotated[int, Meta(ge=0, le=65_535)]


class Runtime(StrEnum):
    PROCESS = "process"
    CONTAINER = "container"


class RestartPolicy(StrEnum):
    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"


class OnDisconnect(StrEnum):
    """What work does when its node loses contact with the servers."""

    STOP = "stop"
    KEEP = "keep"


class Protocol(StrEnum):
    TCP = "TCP"
    UDP = "UDP"


class SecretRef(Part, frozen=True):
    """One key of a Secret of the same tenant.

    name: the Secret.
    key: the key in it.
    """

    name: str
    key: str


class EnvVar(Part, frozen=True):
    """One environment variable; `value` may refer to earlier ones and to ports as $(NAME).

    name: the variable.
    value: its value.
    secret: take the value from a Secret instead; it is never logged.
    """

    list_keys = ("name",)

    name: str
    value: str = ""
    secret: SecretRef | None = None


class File(Part, frozen=True):
    """A file put into the replica's directory before it starts.

    path: relative to the replica's directory, without `..`.
    content: the file's text.
    secret: take the content from a Secret instead.
    mode: permissions, as an octal text such as "0644"; absent means 0644, or 0600 for a secret.
    """

    list_keys = ("path",)

    path: str
    content: str = ""
    secret: SecretRef | None = None
    mode: str = ""


class Port(Part, frozen=True):
    """A port that the work listens on, given to it as PORT_<NAME>.

    name: how probes, endpoints and the environment refer to it.
    port: a fixed number, exclusive on its node; 0 lets the agent pick a free one.
    protocol: TCP or UDP.
    """

    list_keys = ("name",)

    name: str
    port: PortNumber = 0
    protocol: Protocol = Protocol.TCP


class Resources(Part, frozen=True):
    """Amounts, as Kubernetes writes them.

    cpu: cores, such as 500m or 2.
    memory: bytes, such as 256Mi.
    disk: bytes of local disk.
    """

    cpu: Quantity = 0
    memory: Quantity = 0
    disk: Quantity = 0

    @property
    def amounts(self) -> dict[Resource, Quantity]:
        """Each amount by its resource, in the order in which they are judged."""
        return {Resource.CPU: self.cpu, Resource.MEMORY: self.memory, Resource.DISK: self.disk}


class DeviceRequest(Part, frozen=True):
    """Devices for this replica alone, or a share of one.

    device_class: the class of device, such as gpu.
    count: how many whole devices.
    share: instead of whole devices, this part of a single one, such as 500m.
    models: accepted models; empty means any.
    memory: memory that each device must have at least.
    same_numa: all devices must be attached to one NUMA node.
    """

    device_class: str
    count: Annotated[int, Meta(ge=1, le=1024)] = 1
    share: Quantity | None = None
    models: tuple[str, ...] = ()
    memory: Quantity = 0
    same_numa: bool = False


class ExecAction(Part, frozen=True):
    """Run a command beside the work; success is exit code 0.

    command: the program and its arguments.
    """

    command: tuple[str, ...]


class HttpAction(Part, frozen=True):
    """GET a path; success is a status from 200 to 399.

    port: a named port of the template, or a number.
    path: the path, with a leading slash.
    """

    port: str | Int
    path: str = "/"


class TcpAction(Part, frozen=True):
    """Connect to a port; success is a connection.

    port: a named port of the template, or a number.
    """

    port: str | Int


class Probe(Part, frozen=True):
    """A periodic check by the agent. Exactly one of exec, http, tcp.

    exec: run a command.
    http: GET a path.
    tcp: connect to a port.
    period_seconds: how often.
    timeout_seconds: how long one check may take.
    initial_delay_seconds: how long to wait after the start.
    success_threshold: how many successes in a row count as success.
    failure_threshold: how many failures in a row count as failure.
    """

    exec: ExecAction | None = None
    http: HttpAction | None = None
    tcp: TcpAction | None = None
    period_seconds: Annotated[int, Meta(ge=1, le=86_400)] = 5
    timeout_seconds: Annotated[int, Meta(ge=1, le=3_600)] = 1
    initial_delay_seconds: Seconds = 0
    success_threshold: Annotated[int, Meta(ge=1, le=100)] = 1
    failure_threshold: Annotated[int, Meta(ge=1, le=100)] = 3


class Probes(Part, frozen=True):
    """How the agent checks the health of the work.

    startup: until it succeeds once, the others wait and the work counts as starting.
    readiness: while it fails, the work gets no traffic.
    liveness: when it fails, the work is restarted.
    """

    startup: Probe | None = None
    readiness: Probe | None = None
    liveness: Probe | None = None


class PreStop(Part, frozen=True):
    """What to do before the stop signal, inside the grace period. Exactly one of exec, http.

    exec: run a command.
    http: GET a path.
    """

    exec: ExecAction | None = None
    http: HttpAction | None = None


class ServiceToken(Part, frozen=True):
    """A token for the plane's API, with the identity of the workload's service account.

    file: the file with the token, in the replica's directory; the agent replaces it before the
        token expires.
    life_seconds: the lifetime of each token.
    """

    file: str
    life_seconds: Annotated[int, Meta(ge=600, le=86_400)] = 3_600


class TemplateMeta(Part, frozen=True):
    """Labels and annotations that each replica gets.

    labels: short values to select by.
    annotations: longer values that nothing selects by.
    """

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Template(Part, frozen=True):
    """One replica of a workload.

    metadata: labels and annotations that each replica gets.
    runtime: process runs the command on the node, container inside an image.
    image: for containers: an image reference or a local root file system.
    image_pull_secret: for containers: the Secret with the credentials to pull the image.
    host_network: for containers: use the node's network, which the tenant's policy must allow.
    command: the program and its arguments; $(NAME) is replaced from the environment.
    working_dir: relative to the replica's directory.
    user: run as this user of the node.
    env: environment variables.
    files: files put in place before the start.
    service_token: a token for the plane's API, short-lived and replaced in time.
    ports: ports that the work listens on.
    resources: the resources that are reserved for it.
    limits: the most it may use; if absent, memory is limited to the reserved amount.
    devices: exclusive devices or shares of one.
    placement: where it may run.
    isolation: the minimum isolation from the work of other tenants on its node.
    priority_class: how urgent it is; the class limits who may use it.
    probes: how the agent checks its health.
    pre_stop: what to do before the stop signal.
    grace_seconds: how long it may take to stop before it is killed.
    drain_seconds: how long, within the grace, serving work continues after its address was
        withdrawn and before the stop signal, so that clients can move away.
    restart: whether the agent starts it again in place when it ends.
    on_disconnect: stop ends it when its node is cut off, so that a replacement is safe; keep lets
        it run.
    replace_after_seconds: for keep, start a replacement after this time without contact; absent
        means never.
    startup_deadline_seconds: how long it may take from bound to ready before it counts as stuck.
    """

    metadata: TemplateMeta = TemplateMeta()
    runtime: Runtime = Runtime.PROCESS
    image: str = ""
    image_pull_secret: str = ""
    host_network: bool = False
    command: tuple[str, ...] = ()
    working_dir: str = ""
    user: str = ""
    env: tuple[EnvVar, ...] = ()
    files: tuple[File, ...] = ()
    service_token: ServiceToken | None = None
    ports: tuple[Port, ...] = ()
    resources: Resources = Resources()
    limits: Resources = Resources()
    devices: tuple[DeviceRequest, ...] = ()
    placement: Placement = Placement()
    isolation: Isolation = Isolation.NONE
    priority_class: str = ""
    probes: Probes = Probes()
    pre_stop: PreStop | None = None
    grace_seconds: Annotated[int, Meta(ge=0, le=3_600)] = 10
    drain_seconds: Annotated[int, Meta(ge=0, le=3_600)] = 1
    restart: RestartPolicy = RestartPolicy.ALWAYS
    on_disconnect: OnDisconnect = OnDisconnect.STOP
    replace_after_seconds: Seconds | None = None
    startup_deadline_seconds: Count = 600
