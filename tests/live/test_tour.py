"""The tour of the README, typed as it is printed: once with kubectl, once with holdfast.

Nothing is played here: `make up` runs a plane of six processes, the service answers http, its
process is killed with -9, a node joins with a token, and the plane is stopped and started again in
between.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import msgspec
import pytest

from tests.live.terminal import READY, Step, commands_of, terminal_in, type_all

KUBECTL, HOLDFAST = "kubectl", "holdfast"


def commands(variant: str) -> list[str]:
    """Every command of the tour, in order; of two forms the one that is wanted."""
    forms = [re.split(r"\s+# or: ", line) for line in commands_of("README.md", "The tour")]
    return [form[-1] if variant == HOLDFAST else form[0] for form in forms]


TOUR = (
    Step("make up", READY),
    Step("export PATH="),
    Step("export KUBECONFIG="),
    Step("{} get nodes", r"node-1 +Ready[^$]*node-2 +Ready[^$]*node-3 +Ready"),
    Step("{} apply -f examples/hello.yaml", r"workload.holdfast.dev/hello (created|serverside)"),
    Step("{} get workloads,replicas", r"hello +Service +2/2[^$]*hello-0-0 +Running +Serving"),
    Step("{} get replicas -o wide", r"hello-1-0 +Running +Serving.*http=127.0.0.1:\d+"),
    Step("HELLO="),
    Step("curl", "Directory listing"),
    Step("ID="),
    Step("kill -9 "),
    Step("{} get replica hello-0-0", r"hello-0-0 +Running +Serving +node-\d +1 "),
    Step("HELLO="),
    Step("curl", "Directory listing"),
    Step("{} scale workload hello", r"scaled"),
    Step("{} get workload hello", r"hello +Service +3/3"),
    Step("holdfast explain replica hello-2-0", r"default/hello-2-0 is Running"),
    Step("holdfast capacity", r"local-1 +general +cpu"),
    Step("{} apply -f examples/first-job.yaml", r"holdfast.dev/count (created|serverside)"),
    Step("{} get workload count", r"count +Job +6/6"),
    Step("{} logs count-3-0", r"piece 3 of 6"),
    Step("eval ", "The agent of annex works", hides="warning"),
    Step("{} get node annex", r"annex +Ready"),
    Step("make up", READY),
    Step("{} get replicas", r"hello-0-0 +Running +Serving +node-\d +1 [^$]*hello-2-0 +Running"),
    Step("curl", "Directory listing"),
    Step("holdfast status", r"controller +workload +acts[^$]*Everything works"),
    Step("holdfast drain node-1", r"node-1: no work and no reservation is left"),
    Step("holdfast uncordon node-1", r"node-1 uncordoned"),
    Step("{} delete workload hello", r"delet"),
    Step("{} get workloads,replicas", hides="hello"),
)


@pytest.mark.slow
@pytest.mark.parametrize("variant", [KUBECTL, pytest.param(HOLDFAST, marks=pytest.mark.long)])
def test_the_tour_of_the_readme_goes_as_printed(variant: str, tmp_path: Path) -> None:
    """[A6, C7.4, H1, H8]"""
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl: `make system` installs one")
    steps = [msgspec.structs.replace(it, begins=it.begins.format(variant)) for it in TOUR]
    with terminal_in(tmp_path) as terminal:
        type_all(terminal, commands(variant), steps)
