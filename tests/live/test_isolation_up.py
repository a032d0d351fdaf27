"""`holdfast up` as root and as an unprivileged user: what a job can read of its plane."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.test_up import ROOT, START_S, Up, eventually

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")

UNPRIVILEGED = "54321"
JOB = """
apiVersion: holdfast.dev/v1
kind: Workload
metadata: {{name: intruder, namespace: default}}
spec:
  type: Job
  replicas: 1
  template:
    command: [/bin/sh, -c, {script}]
    resources: {{cpu: 10m, memory: 16Mi}}
"""
SCRIPT = """
exec 2> errors; echo mine > mine; id -u
echo stolen $(cat /etc/shadow {data}/pki/ca.key {data}/kubeconfig) $(ls -a {data}/pki)
ls {data}; ls {data}/agents/node-1 | grep -cvx "$HOLDFAST_UID"
cat "$HOLDFAST_DIRECTORY/mine"; echo done
"""


class UpAs(Up):
    """One that runs as another user, for whom the directory of this Python is made passable.

    Others cannot pass the directories that pytest makes.
    """

    def __init__(self) -> None:
        super().__init__(Path(tempfile.mkdtemp(prefix="holdfast-", dir="/var/tmp")))

    def close(self) -> None:
        super().close()
        shutil.rmtree(self.data.parent)

    def spawn(self, *options: str) -> subprocess.Popen[bytes]:
        self.data.mkdir()
        for folder in (self.data, self.log.parent):
            os.chown(folder, int(UNPRIVILEGED), int(UNPRIVILEGED))
        self.data.chmod(0o700)
        python, kept = Path(sys.base_prefix), self.log.parent / "kept"
        closed = Path(*python.parts[:2])
        enter = (
            f"mkdir {kept}; mount --rbind {closed} {kept}",
            f"mount -t tmpfs -o mode=755 none {closed}",
            f"mkdir -p {python}; mount --bind {kept / python.relative_to(closed)} {python}",
            f'exec setpriv --reuid {UNPRIVILEGED} --regid {UNPRIVILEGED} --clear-groups "$@"',
        )
        up = self.command("up", "--data", str(self.data), *self.listen, "--agents=1", *options)
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                ["unshare", "--mount", "sh", "-e", "-c", "\n".join(enter), "sh", *up],
                cwd=self.log.parent,
                env={
                    "PATH": os.environ["PATH"],
                    "PYTHONPATH": str(ROOT / "src"),
                    "HOME": str(self.log.parent),
                },
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        return self.process


@pytest.fixture(params=["root", "unprivileged"])
def up(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Up]:
    made = Up(tmp_path) if request.param == "root" else UpAs()
    try:
        yield made
    finally:
        made.close()


@pytest.mark.slow
def test_a_job_sees_nothing_of_the_plane_that_runs_it(up: Up) -> None:
    """Neither where the agent is root, nor where all is one user's own."""
    up.start()
    script = SCRIPT.format(data=up.data)
    job = up.log.with_name("job.yaml")
    job.write_text(JOB.format(script=json.dumps(script)))
    code, said = up.run("apply", "-f", str(job))
    assert code == 0, said
    eventually(lambda: "done" in up.run("logs", "intruder-0-0")[1], START_S)
    user, *seen = up.run("logs", "intruder-0-0")[1].splitlines()
    assert int(user) >= 1_000
    assert (user == UNPRIVILEGED) is isinstance(up, UpAs)
    # What is left of the way to its own directory is all that there is.
    assert seen == ["stolen", "agents", "0", "mine", "done"]
