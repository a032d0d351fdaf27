"""The worked examples, each run by the production machines under virtual time.

One file per example: its components, its faults with their exact moments, and every sentence that
must be true at the end. `example_plane` builds the plane, `cues` triggers faults at the moment
where they matter most, `run_log` records requests, answers and commits, and `sentences` checks the
sentences against that log. The seed draws everything else: message delays, which component is
faster, how late something is. `holdfast sim run NAME` runs one example.
"""
