"""The audit's files on a server: written by the audit writer's shell, read by `holdfast audit`."""
