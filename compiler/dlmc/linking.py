"""One file under two names, where the disk can; a copy where it cannot."""

import errno
import os
import shutil
from pathlib import Path

# What the file system answers where it cannot link: another device, no links, too many, no right.
_NO_LINK = frozenset(
    {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS, errno.EACCES}
)


def link_or_copy(source: Path, target: Path) -> bool:
    """Make ``target`` the same file as ``source``, or a copy; return whether it is the same.

    Nobody may write to ``target`` afterwards: it would change the source.

    Raises:
        OSError: the disk refuses; also where ``target`` exists.
    """
    try:
        # A hub snapshot consists of symbolic links; the file itself is what must be shared.
        os.link(source.resolve(), target)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        shutil.copyfile(source, target)
        return False
    return True
