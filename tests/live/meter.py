"""What a process costs: its time on a CPU and its memory, as the kernel counts them."""

from __future__ import annotations

from pathlib import Path


class Meter:
    """Looks at one process from outside, without asking it."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")

    def cpu_ms(self) -> float:
        """All threads that live, to the microsecond; utime counts in steps of ten milliseconds."""
        ran_ns = 0
        for thread in (self._folder / "task").iterdir():
            ran_ns += int((thread / "schedstat").read_text().split()[0])
        return ran_ns / 1e6

    def rss_bytes(self) -> int:
        return self._status("VmRSS")

    def peak_bytes(self) -> int:
        """The most that it ever had resident since `forget_peak`."""
        return self._status("VmHWM")

    def forget_peak(self) -> None:
        (self._folder / "clear_refs").write_text("5")

    def descriptors(self) -> int:
        return len(list((self._folder / "fd").iterdir()))

    def _status(self, field: str) -> int:
        for line in (self._folder / "status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) << 10
        raise AssertionError(f"no {field}")
