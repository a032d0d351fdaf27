"""Server-side apply held against rules that a reader can check by hand, over random histories.

A history is a sequence of applies, forced or not, and of other writes by a few managers on one
Workload. The tests flatten trees to leaves by themselves and judge from those; they share no code
with what they test beyond its entry points.
"""

from __future__ import annotations

import json
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.commit.apply.diff import changed_paths, json_equal
from holdfast.commit.apply.field_sets import difference, intersection, paths, remove_subtrees, union
from holdfast.commit.apply.managed_fields import Conflicts, Entries
from holdfast.commit.apply.server_side import ApplyResult, apply, entries_after_update
from holdfast.commit.apply.shapes import shape_of
from holdfast.model.kinds.workload import Workload

SHAPE = shape_of(Workload)
T0 = datetime(2026, 1, 1, tzinfo=UTC)
MANAGERS = ("ada", "ben", "cy")

Tree = dict[str, Any]
Path = tuple[str, ...]

# What the struct says of the fields used here, written down a second time on purpose.
DEFAULTS: dict[str, Any] = {
    "replicas": 1,
    "paused": False,
    "maxSurge": "25%",
    "value": "",
    "command": [],
    "port": 0,
    "protocol": "TCP",
}
KEYED = {"env", "ports"}

words = st.sampled_from(["u", "v", "w"])
names = st.sampled_from(["A", "B", "C", "D"])


def _some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Tree]:
    return st.fixed_dictionaries({}, optional=fields)


def _items(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Tree]]:
    item = st.fixed_dictionaries({"name": names}, optional=fields)
    return st.lists(item, max_size=4, unique_by=lambda i: str(i["name"]))


specs = _some(
    replicas=st.integers(1, 3),
    latencyTargetMs=st.one_of(st.none(), st.integers(1, 2)),
    rollout=_some(paused=st.booleans(), maxSurge=st.sampled_from(["25%", 1])),
    disruption=st.one_of(st.none(), _some(maxUnavailable=st.integers(1, 2))),
    template=_some(
        command=st.lists(words, max_size=2),
        env=st.one_of(st.none(), _items(value=st.one_of(st.none(), words))),
        ports=_items(port=st.integers(0, 2), protocol=st.sampled_from(["TCP", "UDP"])),
    ),
)
labels = st.dictionaries(st.sampled_from(["a", "b", "c.d/e"]), words, max_size=3)
finalizers = st.lists(st.sampled_from(["x/1", "x/2", "x/3"]), unique=True, max_size=3)


@st.composite
def configs(draw: st.DrawFn) -> Tree:
    metadata = {"name": "w", **draw(_some(labels=labels, finalizers=finalizers))}
    return {"metadata": metadata, **draw(_some(spec=specs))}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


class History:
    """One object and its owners after some steps."""

    def __init__(self) -> None:
        self.tree: Tree | None = None
        self.owners: Entries = ()
        self.now = T0

    def try_apply(self, manager: str, config: Tree, force: bool) -> ApplyResult | Conflicts:
        self.now += timedelta(seconds=1)
        before = deepcopy((self.tree, self.owners, config))
        result = apply(
            self.tree,
            self.owners,
            config,
            manager=manager,
            now=self.now,
            shape=SHAPE,
            force=force,
        )
        assert (self.tree, self.owners, config) == before
        return result

    def take(self, result: ApplyResult | Conflicts) -> None:
        if isinstance(result, ApplyResult):
            self.tree, self.owners = result.tree, result.managed_fields

    def write(self, manager: str, tree: Tree) -> None:
        self.now += timedelta(seconds=1)
        before = deepcopy((self.tree, self.owners, tree))
        owners = entries_after_update(
            self.tree, tree, self.owners, manager=manager, now=self.now, shape=SHAPE
        )
        assert (self.tree, self.owners, tree) == before
        self.tree, self.owners = tree, owners

    def owned(self, manager: str, operation: str = "Apply") -> set[Path]:
        return {
            path
            for entry in self.owners
            if (entry.manager, entry.operation) == (manager, operation)
            for path in paths(entry.fields_v1)
        }

    def owned_by_others(self, manager: str) -> set[Path]:
        return {
            path
            for entry in self.owners
            if (entry.manager, entry.operation) != (manager, "Apply")
            for path in paths(entry.fields_v1)
        }


steps = st.lists(
    st.tuples(st.sampled_from(["apply", "force", "write"]), st.sampled_from(MANAGERS), configs()),
    max_size=5,
)


@st.composite
def histories(draw: st.DrawFn) -> History:
    history = History()
    for kind, manager, config in draw(steps):
        if kind == "write":
            history.write(manager, _without_nulls(config))
        else:
            history.take(history.try_apply(manager, config, kind == "force"))
    return history


def leaves(value: Any, path: Path = (), *, above: str = "") -> dict[Path, Any]:
    """Every plain value of a tree by its path; lists of the struct's kinds by their keys."""
    found: dict[Path, Any] = {}
    if isinstance(value, dict):
        for key, item in value.items():
            if path == ("f:metadata",) and key == "name":
                continue
            found |= leaves(item, (*path, f"f:{key}"), above=key)
        return found
    if isinstance(value, list) and above in KEYED:
        for item in value:
            key = json.dumps({"name": item["name"]}, separators=(",", ":"))
            found |= leaves(item, (*path, f"k:{key}"))
        return found
    if isinstance(value, list) and above == "finalizers":
        return {(*path, f'v:"{item}"'): item for item in value}
    return {path: value}


def _is_key(path: Path) -> bool:
    return len(path) > 1 and path[-2].startswith("k:") and path[-1] == "f:name"


def _said(config: Tree) -> dict[Path, Any]:
    """What a configuration says of plain values; null says it of values, not of what has parts."""
    parts = {"disruption", "env", "ports", "rollout", "template"}
    return {
        path: value
        for path, value in leaves(config).items()
        if not (value is None and path[-1][2:] in parts)
    }


def _value(tree: Tree | None, path: Path) -> Any:
    """The value at a path, or what its absence means."""
    if tree is not None and path in (found := leaves(tree)):
        return found[path]
    return DEFAULTS.get(path[-1][2:])


@given(history=histories(), manager=st.sampled_from(MANAGERS), config=configs())
def test_after_force_every_value_is_the_forcers(
    history: History, manager: str, config: Tree
) -> None:
    """And what others own and the configuration does not name is as it was. [A9]"""
    once_there, theirs = leaves(history.tree or {}), history.owned_by_others(manager)
    result = history.try_apply(manager, config, force=True)
    assert isinstance(result, ApplyResult)
    history.take(result)
    said = _said(config)
    for path in theirs & once_there.keys() - said.keys():
        assert json_equal(_value(result.tree, path), once_there[path]), path
    for path, value in said.items():
        wanted = DEFAULTS.get(path[-1][2:]) if value is None else value
        assert json_equal(_value(result.tree, path), wanted), path
    assert said.keys() <= history.owned(manager)


@given(history=histories(), manager=st.sampled_from(MANAGERS), config=configs())
def test_applying_the_same_again_changes_nothing(
    history: History, manager: str, config: Tree
) -> None:
    """Neither forced nor asked, and the answer is the very same tree. [C2]"""
    history.take(history.try_apply(manager, config, force=True))
    for force in (False, True):
        again = history.try_apply(manager, deepcopy(config), force)
        assert isinstance(again, ApplyResult)
        assert again.tree is history.tree
        assert again.managed_fields is history.owners


@given(history=histories(), manager=st.sampled_from(MANAGERS), config=configs())
def test_a_conflict_is_a_value_that_another_owns_and_the_configuration_would_change(
    history: History, manager: str, config: Tree
) -> None:
    """Exactly those are named; without any, asking and forcing come to the same. [A9]"""
    theirs = history.owned_by_others(manager)
    expected = {
        path
        for path, value in _said(config).items()
        if path in theirs
        and not json_equal(
            DEFAULTS.get(path[-1][2:]) if value is None else value, _value(history.tree, path)
        )
    }
    result = history.try_apply(manager, config, force=False)
    if isinstance(result, Conflicts):
        assert {conflict.path for conflict in result.found} == expected
    else:
        assert not expected
        forced = history.try_apply(manager, config, force=True)
        assert isinstance(forced, ApplyResult)
        assert forced.tree == result.tree


@given(history=histories())
def test_every_value_has_an_owner(history: History) -> None:
    """Only the key of an item may stay behind for those who own the rest of the item. [A9]"""
    owned = {path for entry in history.owners for path in paths(entry.fields_v1)}
    for path, value in leaves(history.tree or {}).items():
        if not json_equal(value, DEFAULTS.get(path[-1][2:])):
            assert path in owned or _is_key(path), path


@given(history=histories(), manager=st.sampled_from(MANAGERS))
def test_letting_go_of_everything_removes_exactly_what_no_other_manager_owns(
    history: History, manager: str
) -> None:
    """[A9]"""
    if history.tree is None:
        return
    theirs = history.owned_by_others(manager)
    mine = history.owned(manager)
    result = history.try_apply(manager, {"metadata": {"name": "w"}}, force=False)
    assert isinstance(result, ApplyResult)
    before, after = leaves(history.tree), leaves(result.tree)
    items = {path[:-1] for path in before if _is_key(path)}
    for path, value in before.items():
        if json_equal(value, DEFAULTS.get(path[-1][2:])):
            continue  # Spelled out or not, it is there.
        item = path[:-1] if path[:-1] in items else None
        wanted = path in theirs or (
            _is_key(path) and any(other[: len(path) - 1] == path[:-1] for other in theirs)
        )
        free = path not in mine and (item is None or item not in mine)
        if wanted or free:
            assert after.get(path, "gone") == value, path
        else:
            assert path not in after, path
    assert after.keys() <= before.keys()
    assert all(entry.manager != manager or entry.operation != "Apply" for entry in
               result.managed_fields)  # fmt: skip


@given(config=configs(), other=configs())
def test_managers_of_disjoint_fields_never_conflict(config: Tree, other: Tree) -> None:
    """Whichever comes first, both get what they asked for, and the object is the same. [A9]"""
    first = {"metadata": {"name": "w"}, "spec": config.get("spec", {})}
    second = {"metadata": {**other["metadata"], "name": "w"}}
    trees = []
    for order in ((("ada", first), ("ben", second)), (("ben", second), ("ada", first))):
        history = History()
        for manager, part in order:
            result = history.try_apply(manager, part, force=False)
            assert isinstance(result, ApplyResult)
            history.take(result)
        assert history.owned("ada").isdisjoint(history.owned("ben"))
        trees.append(history.tree or {})
    assert not changed_paths(trees[0], trees[1], SHAPE)


@given(ours=_items(value=words), theirs=_items(value=words))
def test_applied_items_keep_their_order_and_others_keep_theirs(
    ours: list[Tree], theirs: list[Tree]
) -> None:
    history = History()
    for manager, items in (("ada", theirs), ("ben", ours)):
        config = {"metadata": {"name": "w"}, "spec": {"template": {"env": items}}}
        history.take(history.try_apply(manager, config, force=True))
    assert history.tree is not None
    env = history.tree["spec"]["template"].get("env", [])
    order = [item["name"] for item in env]
    mine = [item["name"] for item in ours]
    rest = [item["name"] for item in theirs if item["name"] not in mine]
    assert sorted(order) == sorted(mine + rest)
    assert [name for name in order if name in mine] == mine
    assert [name for name in order if name in rest] == rest


@given(history=histories(), manager=st.sampled_from(MANAGERS), config=configs())
def test_a_write_owns_what_it_changed_and_leaves_the_rest_to_its_owners(
    history: History, manager: str, config: Tree
) -> None:
    """[A9]"""
    new = _without_nulls(config)
    old = history.tree
    before = {(e.manager, e.operation): set(paths(e.fields_v1)) for e in history.owners}
    history.write(manager, new)
    after = {(e.manager, e.operation): set(paths(e.fields_v1)) for e in history.owners}
    writer = (manager, "Update")
    now_there, once_there = leaves(new), leaves(old or {})
    for path in now_there.keys() | once_there.keys():
        owners_after = {who for who, owned in after.items() if path in owned}
        if json_equal(_value(new, path), _value(old, path)):
            owners_before = {who for who, owned in before.items() if path in owned}
            assert owners_after - {writer} <= owners_before - {writer}
            if path in now_there and path in once_there:
                assert owners_after == owners_before
        else:
            assert owners_after <= {writer}
            if path not in now_there and not DEFAULTS.get(path[-1][2:]):
                assert not owners_after
            if path in now_there and not json_equal(_value(new, path), DEFAULTS.get(path[-1][2:])):
                assert owners_after == {writer}


# The algebra of sets, against Python's own on paths.

elements = st.sampled_from(["f:a", "f:b", 'k:{"name":"x"}', 'v:"y"'])
path_sets = st.frozensets(st.lists(elements, min_size=1, max_size=3).map(tuple), max_size=8)


def _tree(members: frozenset[Path]) -> Tree:
    root: Tree = {}
    for path in sorted(members):
        node = root
        for element in path:
            node = node.setdefault(element, {})
    for path in sorted(members):
        node = root
        for element in path:
            node = node[element]
        if node:
            node["."] = {}
    return root


@given(a=path_sets, b=path_sets)
def test_sets_of_fields_are_sets_of_paths(a: frozenset[Path], b: frozenset[Path]) -> None:
    left, right = _tree(a), _tree(b)
    before = deepcopy((left, right))
    assert set(paths(left)) == a
    assert set(paths(union(left, right))) == a | b
    assert set(paths(difference(left, right))) == a - b
    assert set(paths(intersection(left, right))) == a & b
    # Each set has one form, so that equal sets are equal trees.
    assert difference(left, right) == _tree(a - b)
    assert union(left, right) == _tree(a | b)
    assert intersection(left, right) == _tree(a & b)
    assert (left, right) == before


@given(a=path_sets, gone=path_sets)
def test_what_is_gone_is_gone_with_everything_below_it(
    a: frozenset[Path], gone: frozenset[Path]
) -> None:
    # As a comparison makes them: whatever is removed is removed whole.
    roots = frozenset(
        path for path in gone if not any(path[:n] in gone for n in range(1, len(path)))
    )
    left = remove_subtrees(_tree(a), _tree(roots))
    expected = {path for path in a if not any(path[: len(root)] == root for root in roots)}
    assert set(paths(left)) == expected
    assert left == _tree(frozenset(expected))
