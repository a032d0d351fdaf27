"""Figures of speed, each beside a bound or a peer measured in the same run. Start at harness.py."""
