"""The tests. A package only so that they can import each other's models; start at unit/."""
