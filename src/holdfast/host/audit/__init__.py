"""The audit's files on a server: written by the scribe's shell, read by `holdfast audit`."""
