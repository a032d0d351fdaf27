"""The processes of `holdfast up`: which there are, and how each is started and watched."""
