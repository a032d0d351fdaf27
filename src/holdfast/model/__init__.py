"""The data model and its pure rules: kinds, quantities, lifecycle, placement, errors, encoding."""
