"""What every Holdfast process uses: the shell of a machine, clocks, files, metrics."""
