"""Reads NCCL's topology dump: the XML file that NCCL writes to the path in NCCL_TOPO_DUMP_FILE.

    system > cpu > pci > … > pci > gpu > nvlink
                             pci > nic > net

A `pci` element between the CPU and a device is a switch. NCCL does not distinguish host bridges of one NUMA node: the
kind NODE of nvidia-smi is PHB here. A dump holds the devices that NCCL used, which may not be all devices.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from xml.parsers import expat

from paceline.errors import UsageError
from paceline.topology import links as kinds
from paceline.topology import pci
from paceline.topology.host import format_list
from paceline.topology.machine import Gpu, Link, Nic, NumaNode, Path, Topology

SOURCE = "NCCL topology XML"
ADVICE = "Create the file again, with any NCCL run: NCCL_TOPO_DUMP_FILE=topology.xml"

# GT/s per lane to PCIe generation: 16 GT/s is PCIe 4.
_SPEEDS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
# Major compute capability of a GPU (sm // 10) to NVLink generation.
_NVLINKS = {6: 1, 7: 2, 8: 3, 9: 4, 10: 5}
_SWITCH = "0x0680"  # PCI class of an NVLink switch


@dataclass
class _Element:
    tag: str
    attributes: dict[str, str]
    line: int
    parent: _Element | None
    children: list[_Element] = field(default_factory=list)

    def below(self, tag: str) -> list[_Element]:
        found = [self] if self.tag == tag else []
        return found + [each for child in self.children for each in child.below(tag)]

    def up(self, tag: str) -> list[_Element]:
        """This element and its ancestors, if they have that tag, nearest first."""
        above = self.parent.up(tag) if self.parent else []
        return [self, *above] if self.tag == tag else above


def read(text: str) -> Topology:
    """The topology in a dump. Raises UsageError, with the line, if the text is not a valid dump."""
    system = _parse(text)
    if system.tag != "system":
        raise _wrong(system.line, f"<{system.tag}> is the outermost element", "<system>")
    hosts = {cpu.attributes.get("host_hash", "") for cpu in system.below("cpu")}
    if len(hosts) > 1:
        raise _wrong(system.line, f"the file describes {len(hosts)} hosts", "the dump of one host")
    gpus = sorted(system.below("gpu"), key=lambda gpu: _number(gpu, "dev"))
    indices = [_number(gpu, "dev") for gpu in gpus]
    for gpu, (one, next_one) in zip(gpus[1:], itertools.pairwise(indices), strict=True):
        if one == next_one:
            raise _wrong(gpu.line, f"a second GPU has dev={one}", "a different dev for each GPU")
    nets = system.below("net")
    labels = [(f"GPU{index}", gpu) for index, gpu in zip(indices, gpus, strict=True)]
    labels += [(f"NIC{number}", net) for number, net in enumerate(nets)]
    return Topology(
        source=SOURCE,
        devices=tuple(_gpu(gpu) for gpu in gpus),
        links=tuple(_join(a, b) for a, b in itertools.combinations(gpus, 2)),
        numa=tuple(sorted((_node(cpu) for cpu in system.below("cpu")), key=lambda node: node.id)),
        nics=tuple(_nic(f"NIC{number}", net, labels) for number, net in enumerate(nets)),
    )


def _parse(text: str) -> _Element:
    root = current = _Element("", {}, 0, None)
    parser = expat.ParserCreate()

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal current
        element = _Element(tag, attributes, parser.CurrentLineNumber, current)
        current.children.append(element)
        current = element

    def end(tag: str) -> None:
        nonlocal current
        assert current.parent is not None
        current = current.parent

    def entity(*arguments: object) -> None:
        # A few lines of nested entities can expand to gigabytes, and a dump never has entities.
        raise _wrong(parser.CurrentLineNumber, "the file defines an entity", "XML without entities")

    parser.StartElementHandler, parser.EndElementHandler, parser.EntityDeclHandler = start, end, entity
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise _wrong(error.lineno, expat.ErrorString(error.code), "well-formed XML") from None
    [system] = root.children
    system.parent = None
    return system


def _gpu(gpu: _Element) -> Gpu:
    slot = _slot(gpu)
    cpu = _cpu(gpu)
    generation, width = _lanes(slot)
    return Gpu(
        index=_number(gpu, "dev"),
        bus=_bus(slot),
        node=_node(cpu).id,
        cpus=_node(cpu).cpus,
        pcie_generation=generation,
        pcie_width=width,
        nvlinks=sum(_number(nvlink, "count") for nvlink in gpu.below("nvlink")),
        nvlink_generation=_nvlink_generation(gpu),
    )


def _join(a: _Element, b: _Element) -> Link:
    direct = max(_nvlinks(a, to=_bus(_slot(b))), _nvlinks(b, to=_bus(_slot(a))))
    count = direct or min(_nvlinks(a, to=None), _nvlinks(b, to=None))
    kind = f"NV{count}" if count else _kind(a, b)
    lanes = [_lanes(_slot(a)), _lanes(_slot(b))]
    rate = kinds.usual_rate(
        kind,
        nvlink=_nvlink_generation(a),
        generation=min((each for each, _ in lanes if each), default=None),
        width=min((each for _, each in lanes if each), default=None),
    )
    return Link(a=_number(a, "dev"), b=_number(b, "dev"), kind=kind, gb_per_s=rate)


def _nvlinks(gpu: _Element, *, to: str | None) -> int:
    """The number of NVLinks to the device at bus address `to`; None counts the links to switches."""
    found = 0
    for nvlink in gpu.below("nvlink"):
        switch = nvlink.attributes.get("tclass", "").startswith(_SWITCH)
        if switch if to is None else not switch and pci.bus_name(nvlink.attributes.get("target", "")) == to:
            found += _number(nvlink, "count")
    return found


def _kind(a: _Element, b: _Element) -> str:
    """The kind of PCIe path, by the switches between the two devices."""
    if _cpu(a) is not _cpu(b):
        return "NODE" if _node(_cpu(a)).id == _node(_cpu(b)).id else "SYS"
    # A device's own pci element does not count as a switch, unless both devices share it (ports of one card).
    above_a, above_b = a.up("pci"), b.up("pci")
    shared = [each for each in above_a if any(each is other for other in above_b)]
    if not shared:
        return "PHB"
    between = sum(1 for above in (above_a, above_b) for each in above[1:] if not any(each is one for one in shared))
    return "PXB" if between else "PIX"


def _nic(label: str, net: _Element, labels: list[tuple[str, _Element]]) -> Nic:
    speed = _number(net, "speed", default=0)
    slots = net.up("pci")
    return Nic(
        label=label,
        name=net.attributes.get("name", label),
        kind=_net_kind(net.attributes.get("guid", "")),
        gbit_per_s=speed / 1000 if speed > 0 else None,
        bus=_bus(slots[0]) if slots else "",
        node=_node(_cpu(net)).id,
        paths=tuple(Path(to=other, kind=_kind(net, element)) for other, element in labels if element is not net),
    )


def _net_kind(guid: str) -> str:
    """The kind of network: an RDMA device has a non-zero GUID, a socket has GUID 0."""
    number = re.fullmatch(r"0x([0-9a-f]+)", guid.lower())
    return "" if not number else "infiniband" if int(number[1], 16) else "ethernet"


def _node(cpu: _Element) -> NumaNode:
    mask = cpu.attributes.get("affinity", "").replace(",", "")
    bits = int(mask, 16) if re.fullmatch(r"[0-9a-fA-F]+", mask) else 0
    return NumaNode(
        id=_number(cpu, "numaid"), cpus=format_list(bit for bit in range(bits.bit_length()) if bits >> bit & 1)
    )


def _cpu(element: _Element) -> _Element:
    above = element.up("cpu")
    if not above:
        raise _wrong(element.line, f"<{element.tag}> is outside a <cpu>", f"every <{element.tag}> inside a <cpu>")
    return above[0]


def _slot(gpu: _Element) -> _Element:
    above = gpu.up("pci")
    if not above:
        raise _wrong(gpu.line, "<gpu> has no PCI address", "every <gpu> inside a <pci busid=…>")
    return above[0]


def _bus(slot: _Element) -> str:
    if "busid" not in slot.attributes:
        raise _wrong(slot.line, "<pci> without busid", 'an address such as busid="0000:07:00.0"')
    return pci.bus_name(slot.attributes["busid"])


def _lanes(slot: _Element) -> tuple[int | None, int | None]:
    speed = re.match(r"[\d.]+", slot.attributes.get("link_speed", ""))
    width = slot.attributes.get("link_width", "")
    return _SPEEDS.get(float(speed[0])) if speed else None, int(width) if width.isdigit() and int(width) else None


def _nvlink_generation(gpu: _Element) -> int | None:
    return _NVLINKS.get(_number(gpu, "sm", default=0) // 10)


def _number(element: _Element, name: str, default: int | None = None) -> int:
    text = element.attributes.get(name)
    if text is None and default is not None:
        return default
    if text is None or not re.fullmatch(r"-?\d+", text):
        raise _wrong(
            element.line,
            f"<{element.tag}> has {name}={text!r}" if text else f"<{element.tag}> has no {name}",
            "a number",
        )
    return int(text)


def _wrong(line: int, found: str, expected: str) -> UsageError:
    return UsageError(f"Line {line} of the XML: {found}; expected: {expected}.", advice=ADVICE)
