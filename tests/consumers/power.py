"""A disk that forgets what was not synced: the journal of a folder's system calls, cut where one likes.

What POSIX promises of a power cut, and no more: a file has the data that it was synced with; a folder has the names
that it was synced with; of what came after, any part may be there, in any order. Data that was not synced may be there,
be empty or be torn.
"""

from __future__ import annotations

import io
import itertools
import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FOLDER = "penstock_consumers/store/folder.py"


class Killed(BaseException):
    """The process is gone: whatever it does next does nothing."""


class Call(NamedTuple):
    """One system call that changes a disk; paths are relative to the root."""

    kind: str
    path: str
    target: str = ""
    data: bytes = b""
    why: str = ""
    """Of a sync: which part of the code asked for it."""


@dataclass
class Journal:
    """The calls below a root, in order, and how many there had been when something was promised."""

    root: Path
    calls: list[Call] = field(default_factory=list)
    promises: list[tuple[int, int]] = field(default_factory=list)
    kill_at: int | None = None

    def promise(self, value: int) -> None:
        """Note that the writers have said so much to others: it must not be lost any more."""
        self.promises.append((len(self.calls), value))

    def promised(self, at: int, nothing: int = -1) -> int:
        """What was promised before so many calls."""
        return max((value for when, value in self.promises if when <= at), default=nothing)

    def without(self, why: str) -> Journal:
        """The journal of code that leaves out one of its syncs."""
        kept = [call.why != why for call in self.calls]
        moved = list(itertools.accumulate(kept, initial=0))
        calls = [call for call, keep in zip(self.calls, kept, strict=True) if keep]
        return Journal(self.root, calls, [(moved[when], value) for when, value in self.promises])

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Listen to the calls that change the disk, until the block ends."""

        def listen(module: Any, name: str, told: Callable[..., Call | None]) -> None:
            act = getattr(module, name)

            def call(*arguments: Any, **named: Any) -> Any:
                if self.kill_at is not None and len(self.calls) >= self.kill_at:
                    raise Killed
                noted = told(*arguments)
                # This disk forgets by itself: the real one need not be waited for.
                answer = None if name == "fsync" else act(*arguments, **named)
                if noted is not None:
                    self.calls.append(noted)
                return answer

            patch.setattr(module, name, call)

        with pytest.MonkeyPatch.context() as patch:
            listen(os, "mkdir", lambda path, *_: self._call("mkdir", path))
            listen(os, "unlink", lambda path: self._call("unlink", path))
            listen(os, "link", lambda source, target: self._call("link", source, target))
            listen(os, "rename", lambda source, target: self._call("rename", source, target))
            listen(os, "fsync", lambda descriptor: self._call("sync", Path(f"/proc/self/fd/{descriptor}").readlink()))
            listen(io, "open", lambda path, mode="r", *_: self._call("create", path) if "x" in mode else None)
            yield

    def _call(self, kind: str, path: Any, target: Any = "") -> Call | None:
        source = Path(path)
        if not source.is_relative_to(self.root):
            return None
        data = source.read_bytes() if source.is_file() else b""
        if kind == "unlink" and not source.exists():
            return None
        beside = str(Path(target).relative_to(self.root)) if target else ""
        return Call(kind, str(source.relative_to(self.root)), beside, data, _why() if kind == "sync" else "")


def _why() -> str:
    """The function of the folder's code that syncs, and of data also for which operation."""
    names, frame = [], sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_filename.endswith(_FOLDER) and frame.f_code.co_name != "_sync":
            names.append(frame.f_code.co_name)
    return f"{names[1]} data" if names[0] == "_write" else names[0]


Files = dict[str, bytes | None]
"""Whatever a disk holds: a file's data, None for a folder."""


def read(root: Path) -> Files:
    """What is on a disk now."""
    found = ((str(path.relative_to(root)), path) for path in sorted(root.rglob("*")))
    return {name: None if path.is_dir() else path.read_bytes() for name, path in found}


def write(files: Files, root: Path) -> None:
    """Put it on a disk."""
    root.mkdir()
    for name, data in sorted(files.items()):
        if data is None:
            (root / name).mkdir()
        else:
            (root / name).write_bytes(data)


class Disk:
    """A disk after some calls: what is certain, and what may have happened besides."""

    def __init__(self, before: Files) -> None:
        self._inodes: list[tuple[bytes | None, bytes]] = []
        self._names: dict[str, int | None] = {}
        for name, data in before.items():
            self._names[name] = None if data is None else self._inode(data, data)
        self._certain = dict(self._names)
        self._open: dict[str, list[Call]] = {}
        self._of: dict[int, int | None] = {}

    def apply(self, call: Call) -> None:
        """Take one call."""
        if call.kind == "sync":
            inode = self._names.get(call.path)
            if inode is None:
                for done in self._open.pop(call.path, []):
                    self._settle(self._certain, done)
            else:
                self._inodes[inode] = (call.data, call.data)
            return
        if call.kind == "create":
            self._of[id(call)] = self._inode(None, b"")
        elif call.kind == "mkdir":
            self._of[id(call)] = None
        elif call.kind in {"link", "rename"}:
            inode = self._of[id(call)] = self._names[call.path]
            if inode is not None:
                self._inodes[inode] = (self._inodes[inode][0], call.data)
        self._settle(self._names, call)
        self._open.setdefault(_parent(call.path), []).append(call)

    def after_a_power_cut(self) -> Iterator[Files]:
        """Everything that may be on the disk when the power comes back, the harshest first."""
        unsure = [call for calls in self._open.values() for call in calls]
        for survive in itertools.product((False, True), repeat=len(unsure)):
            names = dict(self._certain)
            for call in itertools.compress(unsure, survive):
                self._settle(names, call)
            names = {name: inode for name, inode in names.items() if _reachable(name, names)}
            torn = sorted({inode for inode in names.values() if inode is not None and self._inodes[inode][0] is None})
            for kept in itertools.product((0.0, 0.5, 1.0), repeat=len(torn)):
                share = dict(zip(torn, kept, strict=True))
                yield {name: None if inode is None else self._data(inode, share) for name, inode in names.items()}

    def _data(self, inode: int, share: dict[int, float]) -> bytes:
        synced, written = self._inodes[inode]
        return written[: int(len(written) * share[inode])] if synced is None else synced

    def _settle(self, names: dict[str, int | None], call: Call) -> None:
        if call.kind in {"unlink", "rename"}:
            names.pop(call.path, None)
        if call.kind != "unlink":
            names[call.target or call.path] = self._of[id(call)]

    def _inode(self, synced: bytes | None, written: bytes) -> int:
        self._inodes.append((synced, written))
        return len(self._inodes) - 1


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "."


def _reachable(name: str, names: dict[str, int | None]) -> bool:
    parent = name.rpartition("/")[0]
    return not parent or (parent in names and names[parent] is None and _reachable(parent, names))
