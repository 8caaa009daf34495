"""The messages between the controller of a run and its agents, one on each host.

They are msgpack: decoding yields data and never runs code. They are numbered, and what is lost with a broken connection
is sent again (`wire.channel.Sequence`).
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from paceline.launch import messages
from paceline.launch.events import Output
from paceline.settings import RunSettings
from paceline.wire import store
from paceline.wire.channel import Access


class Boot(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent reads from its standard input: where the controller is, and how to prove that it belongs to it."""

    number: int  # of the host
    addresses: tuple[str, ...]  # of the controller
    port: int
    access: Access
    script: str  # a path, to be compared; empty: a module
    folder: str  # the working directory of the script


# --- agent → controller


class Interface(NamedTuple):
    """A network interface that is up. `speed` is in Mbit/s, 0 if the kernel does not know it."""

    name: str
    address: str
    network: str  # such as 10.0.0.0/24
    speed: int


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent finds on its host before anything is started."""

    host: str
    versions: dict[str, str]
    at: float  # its clock
    digest: str  # of the script; empty: there is none at this path
    has_folder: bool
    interfaces: tuple[Interface, ...]
    cores: int
    gpus: int = 0


class Hello(msgspec.Struct, tag=True, frozen=True):
    """The first message of an agent."""

    facts: Facts


class Listening(msgspec.Struct, tag=True, frozen=True):
    """The ports at which the agent listens, for a trial of the network: one for each of its interfaces."""

    ports: tuple[int, ...]


class Reached(msgspec.Struct, tag=True, frozen=True):
    """Of the places that an agent was to connect to, why it could not; empty where it could."""

    failures: tuple[str, ...]


class Ready(msgspec.Struct, tag=True, frozen=True):
    """The host's zygote can fork."""


class Forked(msgspec.Struct, tag=True, frozen=True):
    """The host's workers run. `workers` describes them for the record."""

    pids: tuple[int, ...]
    workers: tuple[dict[str, object], ...]


class Said(msgspec.Struct, tag=True, frozen=True):
    """A message of a worker."""

    rank: int
    message: messages.FromWorkers


class Grown(msgspec.Struct, tag=True, frozen=True):
    """New bytes at the end of a file of the record."""

    name: str
    data: bytes


class Trouble(msgspec.Struct, tag=True, frozen=True):
    """The agent cannot go on. `advice` may be empty."""

    message: str
    advice: str


class States(msgspec.Struct, tag=True, frozen=True):
    """A heartbeat, with the kernel's letter for the state of each worker's process."""

    letters: str = ""


class Clock(msgspec.Struct, tag=True, frozen=True):
    """The answer to `Alive`: what the agent's clock showed."""

    asked: float  # as in `Alive`
    at: float


class Warned(msgspec.Struct, tag=True, frozen=True):
    """A warning about the host itself."""

    text: str


# What the launcher hears of its own zygote and pipes is passed on as it is. `Swept`: the host's part of the record has
# been sent, too.
FromAgent = (
    Hello | Listening | Reached | Ready | Forked | Said | Output | messages.Ended | Grown | messages.Swept
    | Trouble | States | Warned | Clock
)  # fmt: skip


class Envelope(msgspec.Struct, tag=True, frozen=True):
    """Around every message from an agent."""

    number: int  # of the host
    message: FromAgent
    place: int  # of this message among those of the agent
    heard: int  # of the controller's last message that came


class StoreAsk(msgspec.Struct, tag=True, frozen=True):
    """A worker's request to the store of the run, passed on over a connection of its own: it waits for no thread. One
    that comes twice is answered twice and done once."""

    number: int  # of the host
    place: int  # of this request among those of the agent in this run
    ask: store.Ask
    run: int = 0  # number of the run, among those of the agents


class StoreTold(msgspec.Struct, frozen=True):
    """The answer."""

    place: int
    told: store.Told


# --- controller → agent


class Listen(msgspec.Struct, tag=True, frozen=True):
    """Listen at these addresses of yours, for a trial of the network."""

    addresses: tuple[str, ...]


class Connect(msgspec.Struct, tag=True, frozen=True):
    """Try to connect to these places, from these addresses of yours."""

    places: tuple[tuple[str, str, int], ...]  # own address, address, port


class Begin(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Start the host's workers."""

    run: RunSettings
    first: int  # rank of the host's first worker
    workers: int  # on this host
    host: int  # number of this host …
    hosts: int  # … among so many
    address: str  # of this host, at which the other hosts reach it
    interface: str
    master: str  # address of the first host
    master_port: int
    terminal: tuple[tuple[int, int, int], ...] = ()
    number: int = 0  # of this run, among those of the agents


class Where(msgspec.Struct, tag=True, frozen=True):
    """Ask a worker for its stack."""

    rank: int


class Alive(msgspec.Struct, tag=True, frozen=True):
    """A heartbeat of the controller."""

    at: float = 0.0  # the controller's clock, which the agent answers at once with its own; 0: no answer is needed


class Suspended(msgspec.Struct, tag=True, frozen=True):
    """The controller will be stopped (Ctrl-Z): nothing will be heard of it until it is continued."""


class End(msgspec.Struct, tag=True, frozen=True):
    """No more run begins: end yourself."""


ToAgent = Listen | Connect | Begin | messages.Signal | Where | Alive | Suspended | End


class Order(msgspec.Struct, frozen=True):
    """Around every message to an agent."""

    message: ToAgent
    place: int  # of this message among those of the controller
    heard: int  # of the agent's last message that came
