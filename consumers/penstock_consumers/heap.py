"""How a consumer keeps its heap small.

Whenever a wait of kafka-python's times out, some times a second, it leaves what it had fetched, up to megabytes, in a
cycle of references. Python finds most of those soon; but some grow old first, and the oldest objects are looked through
only once they have become a quarter more, which beside the hundreds of thousands of a process that has imported Arrow
takes hours. So what is there from the start is set apart, and all the rest is looked through every few seconds.

Nor does glibc give back all that is freed. A consumer's records, and the arrays that are made of them, are of all sizes
from a few bytes to some megabytes, and are freed in another order than they came in. What is free then lies in holes,
between small things that stay, in which hardly any large piece fits; the heap grows for the next one, and by itself
gives back only what lies at its top. Two things hold it down:

- All threads take from one arena, Arrow among them, and so reuse what any of them has freed. By default each has an
  arena of its own, of up to eight a core, though in Python they take turns anyway; and Arrow has an allocator of its
  own, a few per cent faster, which keeps what threads leave behind that have ended.
- The pages of the holes are given back every few seconds: no more often, for what is taken next is faulted in again.

Another way would be to have large pieces mapped and unmapped one by one (`M_MMAP_THRESHOLD`). That costs a page fault
for each page of each message, which doubles what a step costs.
"""

from __future__ import annotations

import ctypes
import gc
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# What has the effect of `share_arena` where it is in the environment from a process's start.
ENVIRONMENT = {"MALLOC_ARENA_MAX": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
# Of `mallopt`, in glibc's malloc.h.
_M_ARENA_MAX = -8
_TRIM_SECONDS = 2.0


def share_arena() -> None:
    """Have all threads, and Arrow, take from one arena; to be called before anything imports Arrow.

    Does nothing where the C library is another than glibc, nor where the environment says otherwise.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return
    if "MALLOC_ARENA_MAX" not in os.environ:
        library.mallopt(_M_ARENA_MAX, 1)
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", ENVIRONMENT["ARROW_DEFAULT_MEMORY_POOL"])


class Trimmer:
    """Frees what lies in cycles, and gives free pages back, every few seconds of `clock` (monotonic, in seconds).

    What there is when it is made is taken to stay. Where the C library is another than glibc, pages are left to it.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        library = ctypes.CDLL(None)
        self._trim = library.malloc_trim if hasattr(library, "malloc_trim") else lambda _: None
        self._clock = clock
        self._next = clock() + _TRIM_SECONDS
        # What another one set apart before may be garbage by now.
        gc.unfreeze()
        gc.collect()
        gc.freeze()

    def run_once(self) -> None:
        """Do so if it is time; takes some milliseconds."""
        if (now := self._clock()) >= self._next:
            self._next = now + _TRIM_SECONDS
            gc.collect()
            self._trim(0)
