"""Speaking for somebody else by a header, as `kubectl --as` does, is not offered here.

A header that is left unread would be worse than none: whoever tries out with `--as` what another
may do would do it himself. Access reviews answer the question instead (`reviews`).
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.model.errors import Forbidden
from holdfast.model.refusal import Reason

_PREFIX = b"impersonate-"


def refuse_impersonation(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raises Forbidden for a request that means to come from somebody else."""
    for name, _ in headers:
        if name[:12].lower() == _PREFIX:
            raise Forbidden(
                f"{name.decode('ascii', 'replace')[:63]}: nobody may speak for another here "
                "(--as); create a SubjectAccessReview to learn what somebody may do",
                code=Reason.NOT_ALLOWED,
            )
