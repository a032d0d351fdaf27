from __future__ import annotations

import random

from holdfast.model.kinds.tenant import Tenant
from holdfast.model.meta import ObjectMeta
from holdfast.observe.indexer import MANY, Indexer, Key

BY_LABEL = "label"


def _indexer() -> Indexer:
    indexer = Indexer()
    indexer.index(BY_LABEL, lambda it: tuple(it.metadata.labels.values()))
    return indexer


def _put(indexer: Indexer, number: int, label: str | None) -> Key:
    """Put a tenant with this label; None removes it."""
    name = f"t{number}"
    labels = {"of": label} if label is not None else {}
    tenant = Tenant(ObjectMeta(name=name, labels=labels)) if label is not None else None
    indexer.put(("", name), tenant, number)
    return "", name


def test_an_index_is_in_the_order_of_names_however_objects_came_and_went() -> None:
    """Queries in between, with few and with many, do not change the order."""
    rng = random.Random(7)
    indexer, expected = _indexer(), set[Key]()
    numbers = list(range(3 * MANY))
    rng.shuffle(numbers)
    for step, number in enumerate(numbers):
        expected.add(_put(indexer, number, "a"))
        if step % 3 == 0 and step > MANY:
            gone = numbers[rng.randrange(step)]
            expected.discard(_put(indexer, gone, rng.choice(["b", None])))
        if step % 50 == 0 or step == len(numbers) - 1:
            found = [("", it.name) for it in indexer.found(BY_LABEL, "a")]
            assert found == sorted(expected)


def test_an_index_drops_a_value_that_no_object_has_any_more() -> None:
    """And starts over with the next one."""
    indexer = _indexer()
    for number in range(MANY + 1):
        _put(indexer, number, "a")
    assert len(indexer.found(BY_LABEL, "a")) == MANY + 1
    for number in range(MANY + 1):
        _put(indexer, number, None)
    assert indexer.found(BY_LABEL, "a") == []
    _put(indexer, 3, "a")
    assert [it.name for it in indexer.found(BY_LABEL, "a")] == ["t3"]
