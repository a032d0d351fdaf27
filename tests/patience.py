"""How long a test waits for what must come true: long enough for any machine, and no measurement.

What comes, comes much sooner; a wait to the end of this shows that it never does.
"""

from __future__ import annotations

PATIENCE_S = 60.0
# A whole story of many such waits; below the time-out of a test, so that it says where it waited.
STORY_S = 500.0
