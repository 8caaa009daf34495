"""Small files that claim to be large, or are: made here, opened in processes whose memory is measured.

python tests/data/bombs.py DIR     # prints, for each, what opening it raised and how many bytes its memory grew
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import struct
import sys
import tarfile
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOM = 3 << 29  # bytes of address space that a process gets for a bomb: what takes more is stopped, not the machine
MIB = 1 << 20


def deflated(head: bytes, block: bytes, times: int, wbits: int) -> bytes:
    """`head` and then a block so many times, compressed. The block is compressed once, so this takes no time."""
    made = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = made.compress(head) + made.flush(zlib.Z_FULL_FLUSH)
    again = made.compress(block) + made.flush(zlib.Z_FULL_FLUSH)
    body = first + again * times + made.flush()
    if wbits == 15:
        check = zlib.adler32(head)
        for _ in range(times):
            check = zlib.adler32(block, check)
        return b"\x78\x9c" + body + struct.pack(">I", check)
    check = zlib.crc32(head)
    for _ in range(times):
        check = zlib.crc32(block, check)
    size = (len(head) + len(block) * times) & 0xFFFFFFFF
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + body + struct.pack("<II", check, size)


def zeros(head: bytes, mebibytes: int) -> bytes:
    """A gzip file of `head` and so many MiB of zeros: a thousandth of them."""
    return deflated(head, bytes(MIB), mebibytes, 31)


def record_head(length: int) -> bytes:
    from paceline.data.formats import crc32c

    raw = struct.pack("<Q", length)
    return raw + struct.pack("<I", crc32c.masked(raw))


def tar_head(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)


def png(wide: int, high: int) -> bytes:
    """A picture of zeros, in grey."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", wide, high, 8, 0, 0, 0, 0)
    rows = deflated(b"", bytes(wide + 1), high, 15)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def jpeg(wide: int, high: int) -> bytes:
    """Of 16 × 16 pixels, whose head says otherwise."""
    from PIL import Image

    raw = io.BytesIO()
    Image.new("RGB", (16, 16)).save(raw, "jpeg")
    data = raw.getvalue()
    at = data.index(b"\xff\xc0") + 5
    return data[:at] + struct.pack(">HH", high, wide) + data[at + 4 :]


def written(folder: Path, name: str, raw: bytes) -> Path:
    (folder / name).write_bytes(raw)
    return folder / name


def bombs(folder: Path) -> dict[str, Callable[[], Any]]:
    """What each of them does when it is opened. Files are made before memory is looked at."""
    import paceline.data as pd

    pd.files(__file__)  # imports torch, which takes memory, too
    pd.decode_image(png(1, 1), shorter=1)
    pd.decode_image(jpeg(16, 16))

    def records(name: str, raw: bytes, **options: Any) -> Callable[[], Any]:
        path = written(folder, name, raw)
        return lambda: sum(1 for _ in pd.files([path]).records(**options))

    idx = b"\0\0\x08\x01"
    over = written(folder, "over.idx.gz", zeros(idx + struct.pack(">I", 10), 512))
    large = written(folder, "large.idx.gz", zeros(idx + struct.pack(">I", 1 << 29), 512))
    claims = written(folder, "claims.idx.gz", zeros(b"\0\0\x0e\x03" + b"\x7f" * 12, 1))
    cifar = written(folder, "cifar.bin.gz", zeros(b"", 512))
    record = zeros(record_head((1 << 30) + 1), 1025)
    member = zeros(tar_head("a.bin", (1 << 30) + 512), 1025)
    skipped: dict[str, Any] = {"on_error": "skip", "max_bytes": 1 << 20}
    twins = (tar_head("a.x", 0) + tar_head("b.x", 0)) * 1024
    entry = b"\x0a\x01a\x12" + _counted(b"\x1a" + _counted(b"\x0a" + _counted(b"\x80\x01" + b"\x01" * (16 * MIB))))
    example = b"\x0a" + _counted(b"\x0a" + _counted(entry))
    layout = b'{"list":[' + b"{}," * (11 * MIB) + b"{}]}"
    nest = struct.pack("<8sHI", b"paceline", 1, len(layout)) + layout
    tall, wide = png(20, 20_000), png(13_000, 13_000)
    photo = jpeg(20_000, 20_000)
    return {
        "idx.gz holds more than it says": lambda: pd.idx(over),
        "idx.gz is large": lambda: pd.idx(large),
        "idx.gz claims to be larger than any memory": lambda: pd.idx(claims),
        "CIFAR gz is large": lambda: pd.cifar([cifar]),
        "gzip TFRecord with a large record": records("record.tfrecord.gz", record),
        "gzip TFRecord with a large record, skipped": records(
            "skip.tfrecord.gz", zeros(record_head((255 << 20) + 12), 256), **skipped
        ),
        "tar.gz with a large file": records("member.tar.gz", member),
        "tar.gz with a large file, skipped": records(
            "skip.tar.gz", zeros(tar_head("a.bin", 255 << 20), 256), **skipped
        ),
        "tar.gz with very many files": records("many.tar.gz", deflated(b"", twins, 64, 31), on_error="skip"),
        "text.gz without a line's end": records("long.txt.gz", zeros(b"", 320)),
        "Example of many numbers": lambda: pd.decode_example(example)["a"].nbytes,
        "sample of many values": lambda: pd.decode_sample(nest),
        "PNG of 169 million pixels": lambda: pd.decode_image(wide).nbytes,
        "PNG that is resized to a billion pixels": lambda: pd.decode_image(tall, shorter=5_000).nbytes,
        "JPEG that claims 400 million pixels": lambda: pd.decode_image(photo).nbytes,
        "JPEG that claims 400 million pixels, by Pillow": lambda: pd.decode_image(photo, mode="L").nbytes,
    }


def _counted(raw: bytes) -> bytes:
    size, found = len(raw), bytearray()
    while size > 0x7F:
        found.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*found, size]) + raw


def measure(open_it: Callable[[], Any]) -> dict[str, Any]:
    """In a process of its own: its memory is not what another one left."""
    receive, send = os.pipe()
    child = os.fork()
    if not child:
        os.close(receive)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        told: dict[str, Any] = {"raised": "", "message": "", "found": None}
        try:
            told["found"] = open_it()
        except BaseException as error:
            told |= {"raised": type(error).__name__, "message": str(error), "trace": traceback.format_exc(limit=-4)}
        told["grew"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        os.write(send, json.dumps(told, default=repr).encode()[:60_000])
        os._exit(0)
    os.close(send)
    with open(receive, "rb") as file:
        raw = file.read()
    os.waitpid(child, 0)
    return json.loads(raw) if raw else {"raised": "killed", "message": "", "found": None, "grew": ROOM}


def main() -> None:
    with contextlib.suppress(ImportError):
        from paceline.data import size_limits

        size_limits.available_memory = lambda: 128 * MIB  # of a small machine
    made = bombs(Path(sys.argv[1]))
    print(json.dumps({name: measure(open_it) for name, open_it in made.items()}))


if __name__ == "__main__":
    main()
