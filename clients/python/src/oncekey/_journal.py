"""Operations that outlive the app that began them."""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any, Iterator, Protocol, Union
from urllib.parse import quote

from ._errors import NotSent
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
        the same key may still bring an answer. What it raises is a warning, and the outcome stays what it is."""
        ...


class FolderJournal:
    """A file for each operation that has no verdict yet."""

    def __init__(self, folder: Union[str, Path]) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)

    def begun(self, key: str, operation: bytes) -> None:
        # Whole or not at all, also where the machine stops in the middle or two keep the same. For the owner's
        # eyes: it holds what a user said.
        handle, half = tempfile.mkstemp(suffix=".half", dir=self._folder)
        try:
            with open(handle, "wb") as file:
                file.write(operation)
                file.flush()
                os.fsync(file.fileno())
            os.replace(half, self._path(key))
        except BaseException:
            os.unlink(half)
            raise
        _settle(self._folder)

    def ended(self, key: str) -> None:
        # One that is left is asked for once more, and replayed.
        self._path(key).unlink(missing_ok=True)

    def left(self) -> Iterator[Operation[Any]]:
        """What has no verdict yet, oldest first. At the start of an app: send each again. A file that cannot be
        read is told of as a warning, stays, and keeps nothing else back."""
        for path in sorted(self._folder.glob("*.kept"), key=_age):
            try:
                operation = Operation.from_kept(path.read_bytes())
            except FileNotFoundError:
                # Another process had its answer in between.
                continue
            except (OSError, NotSent) as error:
                warnings.warn(f"{path} is left out: {error}", RuntimeWarning, stacklevel=2)
                continue
            yield operation

    def _path(self, key: str) -> Path:
        name = quote(key, safe="")
        if len(name) > 200:
            # Longer than some file systems take.
            name = hashlib.sha256(key.encode()).hexdigest()
        return self._folder / f"{name}.kept"


def _age(path: Path) -> tuple[int, str]:
    try:
        return path.stat().st_mtime_ns, path.name
    except OSError:
        return 0, path.name


def _settle(folder: Path) -> None:
    """Has the new name outlive the machine as well, where the system knows how."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)
