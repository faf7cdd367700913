"""Files of operators, graphs and plans: bytes that notice damage, and JSON that a person can read.

    bytes     b"dtorch" NUL, version (2 bytes), SHA-256 of the rest (32 bytes), the document as msgpack
    JSON      the document, indented

Reading checks that the file is one of dtorch's, its version, that it is whole, and the types of all in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from dtorch.errors import SerializationError
from dtorch.op.records import VERSION, Document

MAGIC = b"dtorch\0"
_WIDTH = 110
_HEAD = len(MAGIC) + 2 + 32


class _Head(msgspec.Struct):
    format: str
    version: int


def to_bytes(document: Document) -> bytes:
    """The document as a binary file.

    Raises:
        SerializationError: a whole number of more than 64 bits.
    """
    try:
        payload = msgspec.msgpack.encode(document)
    except OverflowError as error:
        raise SerializationError(f"cannot be written: {error}") from error
    return MAGIC + VERSION.to_bytes(2, "little") + hashlib.sha256(payload).digest() + payload


def from_bytes(data: bytes) -> Document:
    """Read a binary file.

    Raises:
        SerializationError: it is no file of dtorch, of a newer one, cut short, changed, or not well formed.
    """
    data = bytes(data)
    if not data.startswith(MAGIC):
        raise SerializationError("this is no file of dtorch: it does not begin as one")
    if len(data) < _HEAD:
        raise SerializationError(f"the file is cut short: {len(data)} bytes, the head alone has {_HEAD}")
    _check_version(int.from_bytes(data[len(MAGIC) : len(MAGIC) + 2], "little"))
    if hashlib.sha256(data[_HEAD:]).digest() != data[len(MAGIC) + 2 : _HEAD]:
        raise SerializationError("the file is cut short or was changed: its checksum is another")
    with reading():
        return msgspec.msgpack.decode(data[_HEAD:], type=Document)


def to_json(document: Document) -> str:
    """The document as indented JSON."""
    return _indented(msgspec.to_builtins(document, builtin_types=(bytes,)), "") + "\n"


def _indented(value: Any, margin: str) -> str:
    """JSON text; what fits on a line stands on one."""
    line = msgspec.json.format(msgspec.json.encode(value), indent=0).decode()
    if len(margin) + len(line) <= _WIDTH or not isinstance(value, (dict, list)):
        return line
    deeper = margin + "  "
    if isinstance(value, list):
        inner = [deeper + _indented(item, deeper) for item in value]
    else:
        inner = [
            f"{deeper}{msgspec.json.encode(name).decode()}: {_indented(item, deeper)}"
            for name, item in value.items()
        ]
    first, last = "{}" if isinstance(value, dict) else "[]"
    return "\n".join([first, ",\n".join(inner), margin + last])


def from_json(text: str | bytes) -> Document:
    """Read a JSON file; one that a person has changed is taken if it is still well formed.

    Raises:
        SerializationError: as `from_bytes`.
    """
    with reading():
        head = msgspec.json.decode(text, type=_Head)
    if head.format != "dtorch":
        raise SerializationError(f"this is no file of dtorch but of {head.format!r}")
    _check_version(head.version)
    with reading():
        return msgspec.json.decode(text, type=Document)


def _check_version(version: int) -> None:
    if version > VERSION:
        raise SerializationError(
            f"the file has format {version}, this dtorch reads up to {VERSION}: a newer one wrote it"
        )
    if version < 1:
        raise SerializationError(f"the file has format {version}, which there never was")


@contextmanager
def reading() -> Iterator[None]:
    """Whatever a file may say that cannot be is one kind of error."""
    try:
        yield
    except SerializationError:
        raise
    except Exception as error:
        raise SerializationError(f"the file is not well formed: {type(error).__name__}: {error}") from error
