"""Trees held against the structs: all problems at once, in words that help."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from holdfast.model.encoding.conform import conform, unknown_fields
from holdfast.model.encoding.problems import CODE_INVALID, CODE_UNKNOWN_FIELD, PROBLEMS_MAX
from holdfast.model.encoding.wire import encode, normal
from holdfast.model.errors import Invalid
from holdfast.model.kinds.node import Node, NodeDrain, NodeSpec
from holdfast.model.kinds.secret import Secret
from holdfast.model.kinds.template import Port
from holdfast.model.kinds.tenant import Quota
from holdfast.model.kinds.workload import Workload
from holdfast.model.meta import ObjectMeta


def workload(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "a"}, "spec": {"template": {"command": ["x"]}, **spec}}


def refusal(tree: Any, *, strict: bool = True, cls: Any = Workload) -> Invalid:
    with pytest.raises(Invalid) as caught:
        conform(cls, tree, strict=strict)
    return caught.value


def test_all_problems_are_named_at_once() -> None:
    """Path, value and rule of each, in the order of the document. [B4]"""
    tree = workload(
        replicas="three",
        type="Servise",
        template={
            "ports": [{"name": "a"}, {"port": 70_000}],
            "env": {"A": "b"},
            "resources": {"cpu": []},
            "probes": {"readiness": {"http": {"port": True}, "periodSeconds": 0}},
        },
    )
    assert [str(error) for error in refusal(tree).errors] == [
        "spec.template.ports[1].port: 70000: must be from 0 to 65535",
        "spec.template.ports[1].name: is required",
        "spec.template.env: (an object): must be a list",
        "spec.template.resources.cpu: (a list): must be a string or a number",
        "spec.template.probes.readiness.http.port: true: must be a string or an integer",
        "spec.template.probes.readiness.periodSeconds: 0: must be from 1 to 86400",
        'spec.replicas: "three": must be an integer',
        'spec.type: "Servise": must be one of Service, Job, Cron, PerNode',
    ]


def test_what_a_quota_must_not_say_about_shares_and_cohorts_is_refused() -> None:
    """A weight of zero would be owed nothing for ever, and cohorts have no parents, so that they
    cannot be cyclic. [G2]"""
    meta = {"name": "default", "namespace": "risk"}
    for spec, error in (
        ({"fairness": {"weight": 0}}, "spec.fairness.weight: 0: must be from 1 to 1000000"),
        ({"cohort": "house", "parent": "street"}, "spec.parent: unknown field"),
        ({"cohort": {"parent": "street"}}, "spec.cohort: (an object): must be a string"),
    ):
        refused = refusal({"metadata": meta, "spec": spec}, cls=Quota)
        assert [str(it) for it in refused.errors] == [error]


def test_a_job_that_states_a_century_is_refused() -> None:
    """[E3]"""
    stated = workload(type="Job", job={"expectedSeconds": 100 * 31_557_600})
    assert [str(it) for it in refusal(stated).errors] == [
        "spec.job.expectedSeconds: 3155760000: must be from 0 to 315360000"
    ]


def test_unknown_fields_are_errors_under_strict_only() -> None:
    """In the words that clients of Kubernetes know, with the paths available on their own."""
    tree = workload(template={"comand": ["x"]}, colour="red")
    caught = refusal(tree)
    assert caught.code == CODE_UNKNOWN_FIELD
    assert caught.message == (
        'strict decoding error: unknown field "spec.template.comand" (did you mean command?), '
        'unknown field "spec.colour"'
    )
    assert unknown_fields(caught) == ("spec.template.comand", "spec.colour")
    assert conform(Workload, tree, strict=False).unknown == ("spec.template.comand", "spec.colour")


def test_unknown_fields_stand_beside_other_errors() -> None:
    """Under strict both are named; otherwise only what really stops the document."""
    tree = workload(replicas=-1, colour="red")
    strict, lax = refusal(tree), refusal(tree, strict=False)
    assert strict.code == lax.code == CODE_INVALID
    assert [error.path for error in strict.errors] == ["spec.replicas", "spec.colour"]
    assert [error.path for error in lax.errors] == ["spec.replicas"]
    assert unknown_fields(strict) == ("spec.colour",)


@pytest.mark.parametrize(
    "key, meant",
    [("Command", "command"), ("PORTS", "ports"), ("work_dir", "workingDir"), ("zzz", "")],
)
def test_a_suggestion_is_made_when_something_is_close(key: str, meant: str) -> None:
    """Case and small slips are seen through; nothing is suggested at random."""
    rule = refusal(workload(template={key: 1})).errors[0].rule
    assert rule == (f"unknown field; did you mean {meant}?" if meant else "unknown field")


def test_problems_beyond_the_bound_are_counted() -> None:
    """The refusal stays short, and says how much it leaves out."""
    caught = refusal(workload(template={"command": [1] * 200, "comand": 1}))
    assert len(caught.errors) == PROBLEMS_MAX
    assert caught.message.endswith("and 151 more")
    unknown = workload(**{f"x{i}": 1 for i in range(120)})
    assert refusal(unknown).message.endswith("and 70 more unknown fields")
    assert conform(Workload, unknown, strict=False).warnings[-1] == "and 70 more unknown fields"


def test_null_means_not_given_where_a_field_may_be_left_out() -> None:
    """As Kubernetes takes it; a required field is then missing, and no element is ever null."""
    tree = workload(replicas=None, gang=None, unheard=None)
    assert conform(Workload, tree, strict=False).object.spec.replicas == 1
    tree = workload(template=None)
    assert [str(error) for error in refusal(tree).errors] == ["spec.template: is required"]
    tree = workload(template={"command": ["x", None], "metadata": {"labels": {"a": None}}})
    assert [error.path for error in refusal(tree).errors] == [
        "spec.template.command[1]",
        "spec.template.metadata.labels[a]",
    ]


def test_a_whole_number_may_be_written_as_a_float() -> None:
    """JSON knows one kind of number, so 3.0 is 3, and an amount keeps its fraction."""
    spec = conform(
        Workload, workload(replicas=3.0, rollout={"maxSurge": 2.0}), strict=True
    ).object.spec
    assert (spec.replicas, type(spec.replicas)) == (3, int)
    assert (spec.rollout.max_surge, type(spec.rollout.max_surge)) == (2, int)
    node = {"metadata": {}, "spec": {"capacity": {"cpu": 1.5, "memory": 2}}}
    assert conform(Node, node, strict=True).object.spec.capacity == {"cpu": 1.5, "memory": 2}


@pytest.mark.parametrize("value", [True, 1.5, "1", None, [], {}, 2**60, -(2**60), 1e300])
def test_what_is_no_integer_is_refused(value: Any) -> None:
    """A boolean is none, though Python thinks so; nor is anything beyond ±2^53."""
    tree = {"metadata": {}, "spec": {"overcommit": {"cpu": value}}}
    assert refusal(tree, cls=Node).errors[0].path == "spec.overcommit[cpu]"


def test_what_is_equal_gets_one_form() -> None:
    """Spelled-out defaults, the order of a map, a zone of time or 2.0 for 2 change no byte."""
    plain = {
        "metadata": {"creationTimestamp": "2027-01-01T00:00:00Z", "labels": {"a": "", "b": ""}}
    }
    verbose = {
        "metadata": {
            "creationTimestamp": "2027-01-01T02:00:00+02:00",
            "labels": {"b": "", "a": ""},
            "name": "",
            "finalizers": [],
            "deletionTimestamp": None,
        },
        "spec": {"pool": "general", "costPerHour": 0.0, "cordoned": False},
        "status": {"marks": 0.0},
        "kind": "Node",
    }
    forms = {encode(conform(Node, tree, strict=True).object) for tree in (plain, verbose)}
    assert len(forms) == 1
    built = Node(
        metadata=ObjectMeta(name="a"), spec=NodeSpec(drain=NodeDrain(), pool="gen" + "eral")
    )
    assert encode(normal(built)) == encode(normal(normal(built)))


@pytest.mark.parametrize("moment", ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59"])
def test_a_time_that_is_beyond_the_calendar_in_utc_is_refused(moment: str) -> None:
    """It could be compared with nothing."""
    assert refusal({"metadata": {"creationTimestamp": moment}}, cls=Node).errors


def test_the_wrong_kind_is_the_only_error() -> None:
    """Held against the wrong kind everything else would be wrong as well."""
    caught = refusal({"kind": "Node", "apiVersion": "v1", "spec": 1})
    assert [str(error) for error in caught.errors] == [
        'kind: "Node": must be Workload',
        'apiVersion: "v1": must be holdfast.dev/v1',
    ]


def test_text_in_errors_is_short_and_printable() -> None:
    """Control characters do not reach a terminal, and long values are cut."""
    tree = workload(type="\x1b[31m\u202e" + "x" * 1000, **{"k\x07" + "y" * 1000: 1})
    message = refusal(tree).message
    assert message.isprintable()
    assert "\\x1b[31m\\u202exxx" in message
    assert "spec[k\\x07yyy" in message
    assert len(message) < 300


def test_a_secret_shows_only_paths() -> None:
    """Whatever is wrong with it, and wherever the value stands."""
    tree = {"metadata": {"name": 7}, "data": {"k": 31337}, "stringData": ["31337"]}
    assert [str(error) for error in refusal(tree, cls=Secret).errors] == [
        "metadata.name: (hidden): must be a string",
        "data[k]: (hidden): must be a string",
        "stringData: (hidden): must be an object",
    ]


def test_a_tree_is_not_changed() -> None:
    """Who made it may go on using it."""
    tree = workload(replicas=3.0, gang=None, unheard=1)
    kept = copy.deepcopy(tree)
    conform(Workload, tree, strict=False)
    assert tree == kept


def test_any_json_is_kept_where_it_is_allowed() -> None:
    """Managed fields are a tree of their own."""
    fields = {"f:metadata": {"f:labels": {".": {}, "f:a": {}}}, "x": [1, None, {"y": 2.5}]}
    tree = {"metadata": {"managedFields": [{"manager": "m", "fieldsV1": fields}]}}
    node = conform(Node, tree, strict=True).object
    assert node.metadata.managed_fields[0].fields_v1 == fields


def test_a_struct_without_kind_needs_none() -> None:
    """Then `kind` is an unknown field like any other."""
    assert conform(Port, {"name": "a"}, strict=True).object == Port("a")
    assert unknown_fields(refusal({"name": "a", "kind": "Port"}, cls=Port)) == ("kind",)
