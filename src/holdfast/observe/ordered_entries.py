"""Entries in the order of their keys, of which a picture can be taken at any size.

A list must be of one moment, and whoever makes one of many objects lets others have their turn in
between, while the hub takes in changes. So the entries are in chunks that never change: a change
replaces the one chunk that it is about, and a picture is the list of chunks as they are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from holdfast.observe.entries import Entry

# A change copies one chunk, a picture one reference for each.
CHUNK_MAX = 128

# Immutable, whatever its type says: nobody changes a chunk that others may be reading.
Chunk = list[Entry]


class Picture:
    """Entries of one moment, in order."""

    __slots__ = ("chunks", "count")

    def __init__(self, chunks: list[Chunk]) -> None:
        self.chunks = chunks
        self.count = sum(map(len, chunks))

    def __iter__(self) -> Iterator[Entry]:
        for chunk in self.chunks:
            yield from chunk


class OrderedEntries:
    """See the module's docstring."""

    __slots__ = ("_chunks", "_keys", "_lasts", "count")

    def __init__(self) -> None:
        self._chunks: list[Chunk] = []
        # The keys of each chunk, which no picture has and which may change therefore, and the last
        # one of each.
        self._keys: list[list[str]] = []
        self._lasts: list[str] = []
        self.count = 0

    def put(self, key: str, entry: Entry) -> None:
        """Take in an entry, or replace the one with the same key."""
        at = bisect_left(self._lasts, key)
        if at == len(self._chunks):
            # What arrives in order, as in a first list, fills its chunks.
            if not at or len(self._chunks[-1]) >= CHUNK_MAX:
                self._chunks.append([])
                self._keys.append([])
                self._lasts.append(key)
            else:
                at -= 1
        keys, chunk = self._keys[at], self._chunks[at].copy()
        place = bisect_left(keys, key)
        self._chunks[at] = chunk
        if place < len(keys) and keys[place] == key:
            chunk[place] = entry
            return
        keys.insert(place, key)
        chunk.insert(place, entry)
        self._lasts[at] = keys[-1]
        self.count += 1
        if len(chunk) > CHUNK_MAX:
            half = CHUNK_MAX // 2
            self._chunks[at : at + 1] = [chunk[:half], chunk[half:]]
            self._keys[at : at + 1] = [keys[:half], keys[half:]]
            self._lasts[at : at + 1] = [keys[half - 1], keys[-1]]

    def remove(self, key: str) -> None:
        """Take out the entry with this key, which is there."""
        at = bisect_left(self._lasts, key)
        keys, chunk = self._keys[at], self._chunks[at].copy()
        place = bisect_left(keys, key)
        del keys[place], chunk[place]
        self.count -= 1
        if keys:
            self._chunks[at], self._lasts[at] = chunk, keys[-1]
        else:
            del self._chunks[at], self._keys[at], self._lasts[at]

    def picture(self, begin: str = "", end: str | None = None) -> Picture:
        """The entries as they are now, from one key on and up to another."""
        first = bisect_left(self._lasts, begin)
        last = bisect_left(self._lasts, end) + 1 if end is not None else len(self._chunks)
        chunks, keys = self._chunks[first:last], self._keys[first:last]
        if chunks and end is not None:
            chunks[-1] = chunks[-1][: bisect_left(keys[-1], end)]
        if chunks and begin:
            chunks[0] = chunks[0][bisect_left(keys[0], begin) :]
        return Picture(chunks)
