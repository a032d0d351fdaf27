"""Bugs planted in the handling of damaged records and other versions.

    python -m holdfast.sim mutants tests.sim.versions.mutants:MUTANTS \
        --record tests/sim/versions/found.json

searches for each in its world and records the seed that found it.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.sim.mutants import Mutant, Plant, rewrite, swap

RECORDED = Path(__file__).with_name("found.json")
ROT = "holdfast.sim.worlds.versions.rot:ROT"
COMMIT = "holdfast.commit."
OBSERVE = "holdfast.observe."


def _bug(name: str, mistake: str, *plants: Plant, world: str = ROT) -> Mutant:
    return Mutant(name, mistake, world, plants)


# Nothing raises this, which disables the handler that it replaces.
_NEVER = "except ZeroDivisionError as error:"

DAMAGED = (
    _bug(
        "server-ends-on-a-bad-record",
        "a decision that reads a damaged record stops the server, not the one request",
        rewrite(COMMIT + "authority:_ruling", "except BROKEN as error:", _NEVER),
    ),
    _bug(
        "refused-and-not-in-quarantine",
        "a request is refused for a damaged record, and the record is not put into quarantine",
        rewrite(
            COMMIT + "authority:Authority._quarantine",
            "if request is not None and",
            "if request is None and",
        ),
    ),
    _bug(
        "stream-ends-at-a-bad-object",
        "one object that a component cannot decode ends the stream of all objects of its kind",
        rewrite(
            OBSERVE + "watch_events:_change", "except msgspec.ValidationError as error:", _NEVER
        ),
    ),
)

LEDGERS = "holdfast.sim.worlds.versions.ledgers:LEDGERS"

RECOUNTED = (
    _bug(
        "recount-forgets-what-stops",
        "a recount treats what is being stopped as gone, and its charges are given out again",
        rewrite(
            COMMIT + "ledgers.ledger_sums:binding_of",
            "is State.RELEASED",
            "in (State.RELEASED, State.STOPPING)",
        ),
        world=LEDGERS,
    ),
    _bug(
        "given-out-in-quarantine",
        "a ledger that disagrees with its objects is still charged",
        swap(COMMIT + "quarantine_repair:_close", lambda _draft, _key: None),
        world=LEDGERS,
    ),
    _bug(
        "bad-ledger-waited-for",
        "a scheduler learns that a record is damaged, and not that its node takes nothing",
        rewrite(COMMIT + "quarantine_repair:Doubt.refusal", "reason or self.reason", "self.reason"),
        world=LEDGERS,
    ),
)

MIXED = "holdfast.sim.worlds.versions.mixed:MIXED"

VERSIONS = (
    _bug(
        "unknown-field-dropped",
        "a server that rewrites a record drops the fields that it does not know",
        rewrite(
            COMMIT + "draft:SeenRecords.rewritten_bytes",
            "return data if seen.is_known else with_unknown(type(value), seen.data, data)",
            "return data",
        ),
        world=MIXED,
    ),
    _bug(
        "own-write-taken-for-known",
        "what a server has put back into a record is lost when it writes the record again",
        rewrite(
            COMMIT + "draft:CommitGroup.record_commit",
            "is_known=key not in foreign",
            "is_known=True",
        ),
        world=MIXED,
    ),
    _bug(
        "lists-forget-unknown-parts",
        "a part of a record that is at its default loses what a newer version has put there",
        rewrite(
            "holdfast.model.encoding.unknown_fields:_graft_struct",
            "elif key in shape.inside:",
            "elif False:",
        ),
        world=MIXED,
    ),
    _bug(
        "status-of-the-next-version-refused",
        "a server refuses the status that a newer controller writes, for a field of the object's "
        "spec that it does not know",
        rewrite(
            "holdfast.model.requests:refuses_unknown",
            "return isinstance(request, Create) or not request.subresource",
            "return True",
        ),
        world=MIXED,
    ),
    _bug(
        "forwarded-field-dropped",
        "a server decides what a newer one forwards, and stores it without the field that it does "
        "not know",
        rewrite(
            "holdfast.model.encoding.unknown_fields:has_unknown",
            "return data != known and",
            "return False and",
        ),
        world=MIXED,
    ),
)

RAISED = "holdfast.sim.worlds.versions.raised:RAISED"

FORMATS = (
    _bug(
        "format-not-compared",
        "a server goes by the format that it read at its start, and keeps writing when it is "
        "raised",
        rewrite(
            COMMIT + "authority:Authority._rest_on_format",
            "group.compares[_FORMAT] = seen.modified if seen is not None else ABSENT",
            "pass",
        ),
        world=RAISED,
    ),
    _bug(
        "too-new-a-format-ignored",
        "a server reads a format of the plane that it does not know, and writes all the same",
        swap(COMMIT + "authority:Authority.closed_error", lambda _authority: ""),
        world=RAISED,
    ),
)

MUTANTS = (*DAMAGED, *RECOUNTED, *VERSIONS, *FORMATS)
