"""That the tests beside this one would notice: faults that are planted here, one at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.model.encoding import encrypted_records
from holdfast.model.errors import Forbidden
from holdfast.model.transaction import Put
from holdfast.store.encryption import EncryptedStore
from holdfast.store.encryption import encrypted_store as stores
from holdfast.store.encryption.encrypted_store import DecryptingWatch
from holdfast.store.encryption.keyring import Keyring
from holdfast.store.sqlite import schema
from tests.unit.store.encryption import test_encrypted_store as around
from tests.unit.store.encryption import test_envelope as envelopes

Plant = Callable[[pytest.MonkeyPatch], None]


def place_is_not_bound(planting: pytest.MonkeyPatch) -> None:
    planting.setattr(encrypted_records, "bound_to", lambda header, key: header)


def header_is_not_bound(planting: pytest.MonkeyPatch) -> None:
    planting.setattr(encrypted_records, "bound_to", lambda header, key: key.encode())


def secrets_stay_plain(planting: pytest.MonkeyPatch) -> None:
    planting.setattr(EncryptedStore, "encrypt_write", lambda self, write: write)


def refusals_stay_closed(planting: pytest.MonkeyPatch) -> None:
    planting.setattr(EncryptedStore, "decrypt_record", lambda self, record: record)


def watches_stay_closed(planting: pytest.MonkeyPatch) -> None:
    planting.setattr(EncryptedStore, "opened_batch", lambda self, batch: batch)


def migration_compares_nothing(planting: pytest.MonkeyPatch) -> None:
    whole = stores.Transaction

    def blind(compares: Any, writes: Any) -> Any:
        moved = writes and isinstance(writes[0], Put) and writes[0].key == around.HERE
        return whole(() if moved else compares, writes)

    planting.setattr(stores, "Transaction", blind)


def old_keys_are_good_enough(planting: pytest.MonkeyPatch) -> None:
    planting.setattr(
        Keyring,
        "is_current",
        lambda self, value: encrypted_records.is_encrypted(value) != self.plain,
    )


def plain_ones_are_believed(planting: pytest.MonkeyPatch) -> None:
    planting.setattr(
        EncryptedStore, "decrypt_value", lambda self, key, value: self.ring.decrypt(key, value)
    )


def plain_is_trusted_of_all(planting: pytest.MonkeyPatch) -> None:
    planting.setattr(stores.encrypted_records, "is_encrypted", lambda value: True)


def any_key_will_do(planting: pytest.MonkeyPatch) -> None:
    whole = EncryptedStore.prove

    async def trusting(self: EncryptedStore) -> None:
        with contextlib.suppress(Forbidden):
            await whole(self)

    planting.setattr(EncryptedStore, "prove", trusting)


def batches_are_lost(planting: pytest.MonkeyPatch) -> None:
    whole = DecryptingWatch.__anext__

    async def forgetful(self: DecryptingWatch) -> Any:
        self._held = None
        return await whole(self)

    planting.setattr(DecryptingWatch, "__anext__", forgetful)


def what_is_forgotten_stays_in_the_file(planting: pytest.MonkeyPatch) -> None:
    kept = tuple(it for it in schema.SETTINGS if "secure_delete" not in it)
    planting.setattr(schema, "SETTINGS", kept)


PLANTED: list[tuple[Plant, Callable[..., None]]] = [
    (place_is_not_bound, envelopes.test_a_record_opens_in_its_place_and_nowhere_else),
    (header_is_not_bound, envelopes.test_the_header_is_part_of_what_is_authenticated),
    (secrets_stay_plain, around.test_only_secrets_are_encrypted_and_all_ways_out_are_plain),
    (refusals_stay_closed, around.test_only_secrets_are_encrypted_and_all_ways_out_are_plain),
    (watches_stay_closed, around.test_only_secrets_are_encrypted_and_all_ways_out_are_plain),
    (migration_compares_nothing, around.test_a_write_beside_the_pass_is_not_overwritten),
    (
        old_keys_are_good_enough,
        around.test_records_of_before_are_encrypted_and_those_of_an_old_key_are_too,
    ),
    (plain_ones_are_believed, around.test_a_plain_secret_is_unreadable_once_all_are_encrypted),
    (
        plain_is_trusted_of_all,
        around.test_other_servers_and_the_next_life_know_that_all_are_encrypted,
    ),
    (any_key_will_do, around.test_a_server_without_the_key_fails_before_it_serves),
    (batches_are_lost, around.test_a_cancelled_wait_for_a_key_loses_no_batch),
]


@pytest.mark.parametrize("plant, finder", PLANTED, ids=lambda it: it.__name__)
def test_a_planted_fault_is_found(
    plant: Plant, finder: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    finder()
    plant(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception, TimeoutError)):
        finder()


def test_a_file_that_keeps_what_is_forgotten_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    what_is_forgotten_stays_in_the_file(monkeypatch)
    with pytest.raises(AssertionError):
        around.test_nothing_of_a_plain_secret_is_left_in_the_file_once_it_is_encrypted(tmp_path)
