"""A Ray cluster: an actor for each worker holds its cores and GPUs; the first actor of a node starts its agent."""

from __future__ import annotations

import contextlib
import importlib
import re
import socket
import sys
from collections.abc import Mapping
from typing import Any

from paceline.errors import LaunchError, UsageError
from paceline.launch.cluster.hosts import HostSpec
from paceline.launch.cluster.process import ProcessAgent, agent_command
from paceline.settings import ray_address

_ROOM = 60.0  # seconds for Ray to find room for all workers
_ANSWER = 10.0  # seconds for the head of a cluster to answer
_PLACE = re.compile(r"(?P<host>[^/:]+):(?P<port>\d+)")


class Actor:
    """Runs in a process of Ray's, on the node of its worker."""

    def __init__(self) -> None:
        self._agent: ProcessAgent | None = None

    def gpus(self) -> list[str]:
        """The GPUs that Ray has given to this worker."""
        return [str(name) for name in importlib.import_module("ray").get_gpu_ids()]

    def start(self, variables: Mapping[str, str], secret: bytes) -> None:
        """Starts the agent of this node, with the Python of this process."""
        self._agent = ProcessAgent(agent_command(variables, sys.executable), secret)

    def ended(self) -> str | None:
        return self._agent.ended() if self._agent is not None else None

    def kill(self, patience: float) -> None:
        if self._agent is not None:
            self._agent.kill(patience)


class RayHosts:
    """The nodes that Ray has room on. Uses a running cluster (RAY_ADDRESS, or one on this host), else starts a local
    one. `close` gives everything back."""

    patience = 60.0

    def __init__(self, workers: int) -> None:
        """Waits for room. LaunchError if there is none within a minute."""
        try:
            self._ray: Any = importlib.import_module("ray")
        except ImportError:
            raise UsageError("--on ray: Ray is not installed here.", advice="Type: pip install ray") from None
        options = {"log_to_driver": False, "logging_level": "ERROR", "include_dashboard": False}
        self._was_there = self._ray.is_initialized()
        if not self._was_there:
            _check_answers(ray_address())
        try:
            self._ray.init(address="auto", log_to_driver=False, logging_level="ERROR", ignore_reinit_error=True)
        except ConnectionError:
            self._ray.init(**options)
        except (ValueError, RuntimeError) as error:  # a malformed RAY_ADDRESS; another version of Ray or Python there
            raise LaunchError(
                f"--on ray: this process cannot use the Ray cluster: {str(error).strip().splitlines()[0]}",
                advice="Look at `ray status` and at RAY_ADDRESS. Ray and Python need the same versions on all nodes.",
            ) from None
        try:
            self._actors = self._placed(workers)
        except BaseException:
            self.close()
            raise

    def _placed(self, workers: int) -> dict[str, list[Any]]:
        """The actors of each node, by the node's address."""
        ray, placing = self._ray, importlib.import_module("ray.util.placement_group")
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        share = {"CPU": 1} | ({"GPU": 1} if ray.cluster_resources().get("GPU") else {})
        self._group = placing.placement_group([share] * workers, strategy="PACK")
        if not self._group.wait(_ROOM):
            free = ", ".join(f"{ray.available_resources().get(kind, 0):g} {kind}" for kind in share)
            raise LaunchError(
                f"Ray found no room for {workers} workers within {_ROOM:.0f} s; free are: {free}.",
                advice="Type a smaller -n, or wait until other jobs have ended.",
            )
        nodes = placing.placement_group_table(self._group)["bundles_to_node_id"]
        addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
        made = ray.remote(Actor)
        found: dict[str, list[Any]] = {}
        for bundle, node in sorted(nodes.items(), key=lambda pair: int(pair[0])):
            place = strategies.PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=int(bundle))
            actor = made.options(num_cpus=1, num_gpus=share.get("GPU", 0), scheduling_strategy=place).remote()
            found.setdefault(addresses[node], []).append(actor)
        return found

    def hosts(self) -> list[HostSpec]:
        return [HostSpec(address, len(actors)) for address, actors in self._actors.items()]

    def words(self) -> list[str]:
        return ["--on", "ray"]

    def start_agent(self, host: HostSpec, variables: Mapping[str, str], secret_on_stdin: bytes) -> RayAgent:
        actors = self._actors[host.name]
        gpus = [name for held in self._ray.get([actor.gpus.remote() for actor in actors]) for name in held]
        seen = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
        actors[0].start.remote({**variables, **seen}, secret_on_stdin)
        return RayAgent(self._ray, actors[0])

    def close(self) -> None:
        """Ends the actors, and gives their room back; a cluster that was started here ends."""
        if self._ray.is_initialized() and not self._was_there:
            self._ray.shutdown()


def _check_answers(address: str) -> None:
    """LaunchError if nothing answers at a host and port. Ray itself tries for minutes, and names its own parts."""
    found = _PLACE.fullmatch(address)
    if found is None:
        return
    try:
        socket.create_connection((found["host"], int(found["port"])), timeout=_ANSWER).close()
    except (OSError, OverflowError) as error:
        raise LaunchError(
            f"--on ray: no Ray cluster answers at RAY_ADDRESS={address} ({error}).",
            advice="Look at `ray status`, set RAY_ADDRESS to the head's host:port, or unset it for a local cluster.",
        ) from None


class RayAgent:
    """An agent that an actor has started."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor, self._asked = ray, actor, actor.ended.remote()

    def ended(self) -> str | None:
        ready, _ = self._ray.wait([self._asked], timeout=0)
        if not ready:
            return None
        try:
            why: str | None = self._ray.get(self._asked)
        except self._ray.exceptions.ActorUnavailableError:
            why = None  # it may answer again; the controller gives up a host by itself that is silent for too long
        except self._ray.exceptions.RayError as error:
            return f"its Ray actor has ended: {str(error).splitlines()[0]}"
        self._asked = self._actor.ended.remote()
        return why

    def kill(self, patience: float = 5.0) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.get(self._actor.kill.remote(patience), timeout=patience + 5.0)
