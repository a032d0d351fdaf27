"""`python -m holdfast.cli` is the `holdfast` command."""

from __future__ import annotations

import sys

from holdfast.cli.main import main

sys.exit(main())
