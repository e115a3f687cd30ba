"""A worker process: it makes the envs of one lane and steps them as its parent orders.

It ends when its parent closes the socket or is gone, and leaves Ctrl-C to its parent.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from penstock_producers.contained import CONTAINED, told
from penstock_producers.envs.lanes.buffers import Spaces, share
from penstock_producers.envs.lanes.lane import Lane, close_envs
from penstock_producers.envs.lanes.probe import probe
from penstock_producers.envs.lanes.wire import Channel, read_order, write_result
from penstock_producers.envs.seeds import seeds_from_json
from penstock_producers.envs.source import EnvSource
from penstock_schemas.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock_producers.envs.lanes.lane import AnyEnv
    from penstock_producers.envs.lanes.wire import Message

# How long a worker whose parent is gone may take to close its envs.
_GRACE_S = 5.0


def work(settings: Mapping[str, Any], channel: Channel, memory: int) -> None:
    """Say hello, take the block's layout, then run orders until the parent says that it is over.

    Args:
        settings: what is to be made.
        channel: to the parent.
        memory: file descriptor of the memory that the block of all envs lies in.

    Raises `EOFError` or `OSError` where the parent is gone. The envs are closed in any case.
    """
    source = EnvSource.from_json(settings["source"])
    seeds = seeds_from_json(settings["seeds"])
    indices = range(settings["start"], settings["stop"])
    envs: list[AnyEnv | None] = [None] * len(indices)
    try:
        hello: dict[str, Any] = {}
        if settings["make"]:
            try:
                for place, index in enumerate(indices):
                    envs[place] = source.single(index)
                spaces = probe(envs[0], settings["infos"], seeds=seeds, index=indices[0], name=repr(source.env))  # type: ignore[arg-type]  # all are made
                hello = {"spaces": spaces.to_json()}
            except CONTAINED as error:
                hello = {"error": _reason(error), "type": type(error).__name__}
        channel.send(hello)
        attached, _ = _receive(channel)
        if "close" in attached:
            return
        spaces = Spaces.from_json(attached["spaces"])
        whole = share(spaces, attached["num_envs"], memory, check_bounds=settings["check_bounds"])
        block = whole.part(indices.start, indices.stop)
        lane = Lane(envs, indices, make=source.single, spaces=spaces, block=block, seeds=seeds)
        # The same list from here on: what is made anew is closed in the end, and what it replaced was.
        envs = lane.envs
        _serve(channel, lane)
    finally:
        close_envs(envs)


def _serve(channel: Channel, lane: Lane) -> None:
    while True:
        message = _receive(channel)
        described = message[0]
        if "close" in described:
            return
        if "render" in described:
            channel.send(*_render(lane, described["render"]))
        else:
            result = lane.run(read_order(message, lane.block))
            channel.send(*write_result(result, lane.block))


def _receive(channel: Channel) -> Message:
    message = channel.receive()
    if message is None:
        raise TypeError("a worker's socket blocks")
    return message


def _reason(error: BaseException) -> str:
    # What is Penstock's own says all that is to be known.
    return str(error) if isinstance(error, PenstockError) else told(error)


def _render(lane: Lane, place: int) -> tuple[Mapping[str, Any], bytes]:
    try:
        frame = lane.render(place)
    except CONTAINED as error:
        return {"error": told(error)}, b""
    if frame is None or frame.dtype.hasobject:
        return {"frame": None}, b""
    return {"frame": [list(frame.shape), frame.dtype.str]}, frame.tobytes()


def _end_with_the_parent(connection: int) -> None:
    """End when the parent is gone, also while an env hangs in Python or in a system call."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    poll.poll()
    time.sleep(_GRACE_S)
    _end()


def _end() -> None:
    """End this process at once, and whatever its envs have started."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def main() -> None:
    """Work for the parent whose socket and memory are named, as file descriptors, in the arguments."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection, memory = map(int, sys.argv[1:])
    threading.Thread(target=_end_with_the_parent, args=(connection,), daemon=True).start()
    try:
        work(json.load(sys.stdin), Channel(socket.socket(fileno=connection)), memory)
    except (EOFError, ConnectionError):  # the parent is gone: so is the reason to be here
        _end()


if __name__ == "__main__":
    main()
