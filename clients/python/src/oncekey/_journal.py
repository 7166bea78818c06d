"""Operations that outlive the app that began them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, Iterator, Protocol, Union
from urllib.parse import quote

from ._operation import Operation


class Journal(Protocol):
    """Keeps what was begun, so that an app that was killed in the middle asks for its answer again instead of
    asking anew."""

    def begun(self, key: str, operation: bytes) -> None:
        """Called before the first byte of an operation is sent. ``operation`` is what
        :meth:`Operation.from_kept` takes. Whatever it raises keeps the operation from being sent."""
        ...

    def ended(self, key: str) -> None:
        """Called when nothing more is to be had: an answer, or a refusal that stays the same. Not called where
        the same key may still bring an answer."""
        ...


class FolderJournal:
    """A file for each operation that has no verdict yet."""

    def __init__(self, folder: Union[str, Path]) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)

    def begun(self, key: str, operation: bytes) -> None:
        path = self._path(key)
        # Whole or not at all, also where the machine stops in the middle.
        half = path.with_suffix(".half")
        with open(half, "wb") as file:
            file.write(operation)
            file.flush()
            os.fsync(file.fileno())
        os.replace(half, path)

    def ended(self, key: str) -> None:
        try:
            self._path(key).unlink()
        except OSError:
            # One that is left is asked for once more, and replayed.
            pass

    def left(self) -> Iterator[Operation[Any]]:
        """What has no verdict yet, oldest first. At the start of an app: send each again."""
        for path in sorted(self._folder.glob("*.kept"), key=lambda path: path.stat().st_mtime):
            yield Operation.from_kept(path.read_bytes())

    def _path(self, key: str) -> Path:
        name = quote(key, safe="")
        if len(name) > 200:
            # Longer than some file systems take.
            name = hashlib.sha256(key.encode()).hexdigest()
        return self._folder / f"{name}.kept"
