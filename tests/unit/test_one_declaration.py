"""One of each is added to a copy of the product, in as few files as the checklists say.

A second list that must name a kind, a request, a controller, a route, a fault or a command would
make this test fail: only the files that `ADDED` edits or creates may change, and whatever is
derived from a declaration must have what was added. docs/checklists has the same steps for people.
Tests, docs and the hand-written rows of the authorization matrix come on top.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Edit(NamedTuple):
    """One file: a new one if `before` is empty, otherwise `text` goes before the first `before`."""

    path: str
    text: str
    before: str = ""


KIND = '''"""Beacon: a light that a tenant keeps burning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.kind_declaration import PEOPLE, Kind, KindRules, Writers, text
from holdfast.model.lifecycle import Actor
from holdfast.model.meta import Object, Part

if TYPE_CHECKING:
    from holdfast.model.validation.findings import FieldPath


class BeaconSpec(Part, frozen=True):
    """The light.

    colour: its colour.
    """

    colour: str = "white"


class BeaconStatus(Part, frozen=True):
    """What was observed.

    lit: since when it burns.
    """

    lit: str = ""


class Beacon(Object, frozen=True, kw_only=True, tag="Beacon"):
    """A light.

    spec: the light.
    status: what was observed.
    """

    spec: BeaconSpec = BeaconSpec()
    status: BeaconStatus = BeaconStatus()


def _wanted(obj: Beacon, at: FieldPath) -> None:
    if obj.spec.colour == "dark":
        at["spec"]["colour"].wrong("dark", "must be a light")


BEACON_KIND = Kind(
    Beacon,
    "beacons",
    rules=lambda: KindRules(_wanted),
    writers=Writers(spec=PEOPLE, status={"lit": Actor.DRAIN}),
    columns=(text("Colour", lambda o: o.spec.colour, "its colour"),),
    short_names=("bc",),
)
'''
REQUEST = '''class ReportLight(ReplicaRequest, frozen=True):
    """Report that a replica shines."""

    senders = (Actor.ENDPOINTS,)
    needs = Permission("update", "replicas", "light")

    operation: str = ""


'''
HANDLER = '''def report_light(draft: Draft, context: Context, request: ReportLight) -> None:
    """Shine."""
    return None


'''
STEP = """    PlacementStep(
        "report its light",
        "controller:endpoints",
        "the lamp",
        "it goes out meanwhile",
        "the transition number",
        age_max_ms=7_000,
        request=ReportLight,
        handler=report_light,
        compares=(ComparedRecord.REPLICA,),
    ),
"""
CONTROLLER = '''"""controller:lamps: lights the beacons."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.correct.controller import Controller, ReconcilePlan, key_of
from holdfast.model.lifecycle import Actor
from holdfast.model.requests import Term
from holdfast.model.time import Instant
from holdfast.observe.cache import Key, ObjectChange
from holdfast.observe.snapshot import Snapshot


class LampsController(Controller):
    """See the module's docstring."""

    actor = Actor.LAMPS
    follows = ("workloads",)

    def keys_of(self, change: ObjectChange, view: Snapshot) -> Iterable[Key]:
        return (key_of(change.object),)

    def all_keys(self, view: Snapshot) -> Iterable[Key]:
        return (key_of(it) for it in view.all("workloads"))

    def reconcile(self, view: Snapshot, key: Key, term: Term, now: Instant) -> ReconcilePlan:
        return ReconcilePlan()
'''
ROUTE = '''"""Whether the lamps burn."""

from __future__ import annotations

from aiohttp import web

from holdfast.host.api.call import Call, Route, reply
from holdfast.host.client.paths import GROUP


async def show(call: Call) -> web.StreamResponse:
    """Answer that they do."""
    call.demand_authenticated()
    return reply(200, b"{}")


ROUTES = (Route(f"{GROUP}/lamps", "GET", "get", show),)
'''
FAULT = '''def _fog(world: World, fault: Fault) -> None:
    """Nothing is seen for a moment."""
    world.cells[fault.target].held_until_us = world.now_us


'''
COMMAND = '''"""`holdfast shine`: light a beacon."""

from __future__ import annotations

import click

from holdfast.cli.command_table import Section

SECTION = Section.OBJECTS


@click.command(epilog="Example: holdfast shine")
def shine() -> int:
    """Light a beacon. It burns until it is put out."""
    return 0
'''
# What the checklists promise: each is added by these edits and nothing else.
ADDED: dict[str, tuple[Edit, ...]] = {
    "kind": (
        Edit("model/kinds/beacon.py", KIND),
        Edit("model/registry.py", "    beacon,\n", "    commitment,\n"),
        Edit("model/registry.py", "    beacon.BEACON_KIND,\n", "    replica.REPLICA_KIND,\n"),
    ),
    "request": (
        Edit("model/requests.py", REQUEST, "class RegisterNode("),
        Edit("model/requests.py", "    | ReportLight\n", "    | RegisterNode\n"),
        Edit(
            "model/requests.py", "            | ReportLight()\n", "            | RegisterNode()\n"
        ),
        Edit(
            "commit/lifecycle/progress_reports.py",
            "from holdfast.model.requests import ReportLight\n",
            "from holdfast.model.requests import",
        ),
        Edit("commit/lifecycle/progress_reports.py", HANDLER, "STEPS = ("),
        Edit("commit/lifecycle/progress_reports.py", STEP, '    PlacementStep(\n        "say why'),
    ),
    "controller": (
        Edit("model/lifecycle.py", '    LAMPS = "controller:lamps"\n', "    AUTOSCALE = "),
        Edit("correct/lamps.py", CONTROLLER),
    ),
    "route": (
        Edit("host/api/plane/lamp_routes.py", ROUTE),
        Edit("host/api/routes.py", "    lamp_routes,\n", "    log_routes,\n"),
        Edit("host/api/routes.py", "    lamp_routes,\n", "    heartbeat_routes,\n    tunnels,"),
    ),
    "fault": (
        Edit("sim/faults.py", FAULT, "KINDS: dict"),
        Edit("sim/faults.py", '    "fog": FaultKind(MACHINE, _fog),\n', '    "pause": '),
    ),
    "command": (Edit("cli/shine.py", COMMAND),),
}
FILES = {"kind": 2, "request": 2, "controller": 2, "route": 2, "fault": 1, "command": 1}
# What a user of each finds, without that anything else was named.
FOUND = {
    "kind": """
from holdfast.host.api.plane import discovery, openapi
from holdfast.host.api.routes import Router, table
from holdfast.model.access.roles import ROLES
from holdfast.model.encoding.wire import decode_trusted
from holdfast.model.registry import CONTENTS, kind_named
from holdfast.model.validation import validate
kind = kind_named("Beacon")
kept = b'{"kind":"Beacon","metadata":{"name":"a","namespace":"acme"},"spec":{"colour":"dark"}}'
dark = decode_trusted(kind.struct, kept)
assert [error.path for error in validate(dark)] == ["spec.colour"]
assert [it.name for it in kind.columns] == ["Colour"]
beacons = [it for it in table() if it.kind is kind]
assert {it.verb for it in beacons} >= {"create", "list", "watch", "patch", "delete", "update"}
assert b'"beacons"' in b"".join(discovery.paths().values())
assert b"Beacon" in openapi.v3_group()
assert "beacons" in CONTENTS
rules = ROLES["tenant-editor"]
assert any("beacons" in it.resources and "create" in it.verbs for it in rules)
assert any("beacons/status" in it.resources for it in ROLES["controller-drain"])
""",
    "request": """
import msgspec
from holdfast.commit.authority_table import HANDLERS, STEPS
from holdfast.commit.flow.request_classes import RequestPurpose, purpose_of
from holdfast.host.api.plane.typed_request_routes import decode_requests
from holdfast.model.access.roles import ROLES
from holdfast.model.operation_evidence import operation_id, settling_read
from holdfast.model.requests import ReportLight, Target
sent = ReportLight(Target("acme", "web-0-0", "u", 3), operation="o")
assert decode_requests(msgspec.json.encode(sent)) == sent
assert HANDLERS[ReportLight].__name__ == "report_light"
assert any("replicas/light" in it.resources for it in ROLES["controller-endpoints"])
assert (operation_id(sent), settling_read(sent).name) == ("o", "web-0-0")
assert purpose_of(sent) is RequestPurpose.WRITE
assert [it.age_max_ms for it in STEPS if it.request is ReportLight] == [7_000]
""",
    "controller": """
from holdfast.correct.all_controllers import all_controllers
from holdfast.host.pki.component_credentials import CONTROLLERS, identities
from holdfast.model.access.identity import Identity, acts_as
from holdfast.model.access.roles import ROLES, built_in_roles
[found] = [it for it in all_controllers() if it.name == "lamps"]
assert found.identity in identities(CONTROLLERS, "a")
assert acts_as(Identity(found.identity)) == (found.actor,)
assert ("controller-lamps", "") in built_in_roles(Identity(found.identity))
""",
    "route": """
from holdfast.host.api.routes import Router, table
from holdfast.host.client.paths import GROUP
routes, _ = Router(table()).find(f"{GROUP}/lamps")
assert routes["GET"].handler.__name__ == "show"
""",
    "fault": """
from holdfast.sim.faults import KINDS
from holdfast.sim.plan import Aim, Hazard, draw
assert "fog" in KINDS
""",
    "command": """
import contextlib, io
from holdfast.cli.main import main
for line, part in (
    (["--help"], "Light a beacon."),
    (["shine", "--help"], "Usage: holdfast shine"),
):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert main(line) == 0
    assert part in said.getvalue(), said.getvalue()
assert main(["shine"]) == 0
""",
}


@pytest.mark.parametrize("what", FILES)
def test_one_more_takes_no_more_files_than_the_checklist_says(what: str) -> None:
    """Tests, docs and the hand-written matrix apart."""
    assert len({edit.path for edit in ADDED[what]}) == FILES[what]


class Copy:
    """A copy of the product, to which things are added and taken from again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.package = folder, folder / "holdfast"
        unwanted = shutil.ignore_patterns("holdfast-shim", "__pycache__")
        shutil.copytree(ROOT / "src/holdfast", self.package, ignore=unwanted)

    def files(self) -> dict[str, str]:
        """The text of each file, by its path."""
        return {
            str(it.relative_to(self.package)): it.read_text() for it in self.package.rglob("*.py")
        }

    def add(self, edit: Edit) -> None:
        file = self.package / edit.path
        if not edit.before:
            assert not file.exists()
            file.write_text(edit.text)
            return
        old = file.read_text()
        assert edit.before in old, edit
        file.write_text(old.replace(edit.before, edit.text + edit.before, 1))

    def remove(self, edit: Edit) -> None:
        """By its own text alone, as a person would."""
        file = self.package / edit.path
        if not edit.before:
            file.unlink()
            return
        assert edit.text in file.read_text(), edit
        file.write_text(file.read_text().replace(edit.text, "", 1))

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env={"PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )

    def types(self) -> str:
        """What mypy says of the whole."""
        settings = f"--config-file={ROOT / 'pyproject.toml'}"
        return self.run("-m", "mypy", settings, "-p", "holdfast").stdout


EDITS = [edit for edits in ADDED.values() for edit in edits]


def test_what_is_derived_has_what_was_declared(tmp_path: Path) -> None:
    """One of each at once, in a copy of the product; then none of them is left."""
    copy = Copy(tmp_path)
    before = copy.files()
    for edit in EDITS:
        copy.add(edit)
    said = copy.run("-c", "\n".join(FOUND.values()))
    assert said.returncode == 0, said.stderr
    for edit in reversed(EDITS):
        copy.remove(edit)
    assert copy.files() == before


@pytest.mark.long
def test_mypy_finds_the_step_that_is_forgotten(tmp_path: Path) -> None:
    """With all steps nothing is wrong; without the one of a request's term its place is named."""
    copy = Copy(tmp_path)
    for edit in EDITS:
        copy.add(edit)
    assert copy.types().startswith("Success")
    [term] = [edit for edit in EDITS if "ReportLight()" in edit.text]
    copy.remove(term)
    said = copy.types()
    assert "requests.py" in said
    assert '"assert_never" has incompatible type "ReportLight"' in said
