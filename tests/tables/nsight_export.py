"""Writes the events of a `Machine` as Nsight Systems exports them: `nsys export --type sqlite`.

Tables and columns are those of the export's documented schema (NVIDIA: SQLite Export Schema Reference), in the order of
Nsight Systems 2023 and newer.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from cuda_trace import BASE, Machine

SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE ThreadNames (nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER,
    globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER,
    launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL,
    gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL,
    blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL,
    localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL,
    sharedMemoryExecuted INTEGER, graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER,
    globalPid INTEGER, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, deprecatedSrcId INTEGER, srcKind INTEGER,
    dstKind INTEGER, srcDeviceId INTEGER, srcContextId INTEGER, dstDeviceId INTEGER, dstContextId INTEGER,
    migrationCause INTEGER, graphNodeId INTEGER, virtualAddress INTEGER, copyCount INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
    globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL,
    callchainId INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
    category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER,
    domainId INTEGER, uint64Value INTEGER, int64Value INTEGER, doubleValue REAL, uint32Value INTEGER,
    int32Value INTEGER, floatValue REAL, jsonTextId INTEGER, jsonText TEXT, binaryData TEXT);
"""
PUSH_POP, MARK = 59, 34
VM = 1 << 48  # the upper bits of an identifier: the machine


def write_nsight(path: Path, machines: Sequence[Machine]) -> Path:
    """One export of several processes. Ops become NVTX ranges, as torch.autograd.profiler.emit_nvtx makes them."""
    base = sqlite3.connect(path)
    base.executescript(SCHEMA)
    texts: dict[str, int] = {}

    def text(value: str) -> int:
        return texts.setdefault(value, len(texts) + 1)

    def put(table: str, **values: object) -> None:
        marks = ", ".join("?" * len(values))
        base.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", list(values.values()))

    base.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1790857026000000000, '', '')")
    for machine in machines:
        process = 4000 + machine.rank
        pid = VM | process << 24
        put("ThreadNames", nameId=text("python"), priority=0, globalTid=pid | process)
        for event in machine.events:
            start = event["ts"] - BASE
            times = {"start": start, "end": start + event.get("dur", 0)}
            args = event.get("args", {})
            on_device = {"deviceId": args.get("device"), "contextId": 1, "streamId": args.get("stream")}
            on_device |= {"correlationId": args.get("correlation"), "globalPid": pid}
            if event["cat"] == "kernel":
                sizes = dict.fromkeys(("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"), 1)
                rest = dict.fromkeys(("staticSharedMemory", "dynamicSharedMemory", "registersPerThread", "gridId"), 0)
                rest |= dict.fromkeys(("localMemoryPerThread", "localMemoryTotal"), 0)
                named = {"demangledName": text(event["name"]), "shortName": text(event["name"][:12])}
                put("CUPTI_ACTIVITY_KIND_KERNEL", **times, **on_device, **named, **sizes, **rest)
            elif event["cat"] == "gpu_memcpy":
                kind = 1 if "HtoD" in event["name"] else 2
                put("CUPTI_ACTIVITY_KIND_MEMCPY", **times, **on_device, bytes=args["bytes"], copyKind=kind)
            elif event["cat"] == "cuda_runtime":
                named = {"nameId": text(event["name"] + "_v7000"), "correlationId": args["correlation"]}
                put(
                    "CUPTI_ACTIVITY_KIND_RUNTIME",
                    **times,
                    eventClass=0,
                    globalTid=pid | process,
                    returnValue=0,
                    **named,
                )
            elif event["cat"] in ("cpu_op", "user_annotation"):
                # A name that was registered is a number, another one is the text itself.
                named = {"textId": text(event["name"])} if event["cat"] == "cpu_op" else {"text": event["name"]}
                put("NVTX_EVENTS", **times, eventType=PUSH_POP, globalTid=pid | process, **named)
        put("NVTX_EVENTS", start=5, end=None, eventType=MARK, globalTid=pid | process, text="a moment")
        put("NVTX_EVENTS", start=6, end=None, eventType=PUSH_POP, globalTid=pid | process, text="never ended")
    base.executemany("INSERT INTO StringIds VALUES (?, ?)", [(number, value) for value, number in texts.items()])
    base.commit()
    base.close()
    return path
