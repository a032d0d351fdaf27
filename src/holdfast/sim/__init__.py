"""The virtual shell: time, network, faults, worlds, checkers, scenarios."""
