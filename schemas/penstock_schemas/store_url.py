"""Where a store lies, read alike by those that write it and those that read it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

# Of servers that are asked with their URL's query; other kinds of store have none.
_WITH_QUERIES = {"http", "https"}


def folder_of(url: str) -> Path | None:
    """The folder that a path or a `file://` URL names; None where it is an object store's URL.

    Raises `ValueError` for a URL that cannot be read, or of which a part would be left aside: another store would be
    opened than the one that is meant.
    """
    if "://" not in url:
        return Path(url)
    try:
        parts = urlsplit(url)
    except ValueError:  # which may quote the host, with the user and the password before it
        raise ValueError(f"'{url.partition('://')[0]}://…': its URL names no host that can be read") from None
    if "#" in url or ("?" in url and parts.scheme not in _WITH_QUERIES):
        raise ValueError(
            f"{public(url)!r}: its URL goes on with a '?' or a '#': write %3F or %23 where that is in a name, and give "
            "settings by the environment"
        )
    if parts.scheme != "file":
        return None
    if parts.netloc not in {"", "localhost"} or not parts.path.startswith("/"):
        raise ValueError(
            f"{public(url)!r}: its URL is of a folder, but names a host or no path: write file:/// and the folder's "
            "whole path"
        )
    return Path(unquote(parts.path))


def public(url: str) -> str:
    """A path as it is, a URL that `folder_of` reads without what may be secret in it: user, password and query."""
    if "://" not in url:
        return url
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
