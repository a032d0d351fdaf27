"""What every process of Holdfast uses: the shell of a machine, clocks, files, metrics."""
