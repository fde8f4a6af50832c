"""The files of a checkout, without generated folders and those of others. The checks of script/lint read them."""
import re
from collections.abc import Iterator
from pathlib import Path

UNREAD = re.compile(r"(build[^/]*|runs|subprojects|\.git|\.cache|__pycache__)$")  # folders made here, or not ours


def files(root: Path) -> Iterator[Path]:
    folders = [root]
    while folders:
        for path in sorted(folders.pop().iterdir()):
            if path.is_symlink():
                continue
            elif not path.is_dir():
                yield path
            elif not UNREAD.match(path.name):
                folders.append(path)
