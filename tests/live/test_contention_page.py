"""The section of docs/contention.md that a reader can type: a preemption, and a reclaim."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.live.terminal import READY, Step, commands_of, terminal_in, type_all

BEFORE = (
    Step("make up", READY),
    Step("export PATH="),
    Step("export KUBECONFIG="),
)
STEPS = (
    Step("eval ", "The agent of annex works"),
    Step("kubectl apply -f examples/preemption.yaml", "workload.holdfast.dev/checkout created"),
    Step("kubectl get replicas -l", r"(thumbnails-\d-0 +Running[^$]*){4}"),
    Step("kubectl scale workload checkout", "scaled"),
    # One of the four stays: three stops make room for both.
    Step("kubectl get replicas", r"checkout-0-0 +Running[^$]*checkout-1-0 +Running[^$]*Pending"),
    Step("holdfast explain", r"victims to stop on node annex"),
    Step("kubectl get workload thumbnails", r'"NodeFull":3'),
    Step("kubectl scale workload checkout", "scaled"),
    Step("kubectl get replicas", r"(thumbnails-\d-\d +Running[^$]*){4}", hides="Pending"),
    Step("kubectl apply -f examples/fair-sharing.yaml", "workload.holdfast.dev/web created"),
    Step("kubectl get replicas -n blue", r"(web-\d-0 +Running[^$]*){4}"),
    Step("kubectl scale workload web -n green", "scaled"),
    Step("kubectl get quotas -A", r"blue +default +colours +cpu=200m .*cpu=200m from 20"),
    Step("kubectl get replicas -n green", r"(web-\d-0 +Running[^$]*){2}"),
    Step("holdfast fairness", r"blue +1 .*[^$]*green +2 "),
    Step("kubectl get tenants", r"green +Active +- +\d+\.\d+% +\d+\.\d+% "),
)


@pytest.mark.slow
def test_preemption_and_reclaim_go_as_the_page_prints(tmp_path: Path) -> None:
    """[G1, G3, G4]"""
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl: `make system` installs one")
    before = commands_of("README.md", "The tour")[: len(BEFORE)]
    typed = [*before, *commands_of("docs/contention.md", "Try it")]
    with terminal_in(tmp_path) as terminal:
        type_all(terminal, typed, (*BEFORE, *STEPS))
