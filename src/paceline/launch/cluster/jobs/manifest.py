"""Jobs for Kubernetes: the documents that `paceline submit --kubernetes` gives to kubectl, and their text.

The pods meet by `--rendezvous` at the first one, by its name in a headless service; the secret of the run is a Secret.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from paceline.options import option

PORT = 29500
WAIT = 1800  # seconds: pods start when there is room, and images are pulled
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}  # that YAML does not take for text


@dataclass(frozen=True, kw_only=True)
class KubernetesJob:
    """A command on `nodes` pods: `run` is the verb and its words, without what names the hosts."""

    PANEL: ClassVar = "Kubernetes"
    name: str = ""
    run: Sequence[str] = ()
    nodes: int = 1
    secret: str = ""
    gpus_per_node: int = 0
    kubernetes: bool = option(False, "Create an Indexed Job in Kubernetes.")
    kubeflow: bool = option(False, "With --kubernetes: a PyTorchJob of Kubeflow instead.")
    image: str = option("", "Container image with Paceline, torch and the script.", "IMAGE")
    namespace: str = option("", "Namespace.", "NAME", usual="kubectl's")
    folder: str = option(
        "", "Folder in the image where the script is run.", "DIR", names="--workdir", usual="the image's own"
    )


def documents(job: KubernetesJob) -> list[dict[str, Any]]:
    """The objects to create, in their order."""
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(job),
        "type": "Opaque",
        "stringData": {"secret": job.secret},
    }
    if job.kubeflow:
        return [secret, _pytorch_job(job)]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(job),
        "spec": {
            "clusterIP": "None",
            "selector": {"job-name": job.name},
            "publishNotReadyAddresses": True,  # pods look for each other before they are ready
            "ports": [{"name": "rendezvous", "port": PORT}],
        },
    }
    return [secret, service, _indexed_job(job)]


def _indexed_job(job: KubernetesJob) -> dict[str, Any]:
    index = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    command = _command(job, f"{job.name}-0.{job.name}", "$(PACELINE_NODE)")
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(job),
        "spec": {
            "completionMode": "Indexed",
            "completions": job.nodes,
            "parallelism": job.nodes,
            "backoffLimit": 0,  # a pod alone cannot come back into a run
            "template": {
                "spec": {
                    "subdomain": job.name,
                    "restartPolicy": "Never",
                    "containers": [_container(job, command, [{"name": "PACELINE_NODE", "valueFrom": index}])],
                }
            },
        },
    }


def _pytorch_job(job: KubernetesJob) -> dict[str, Any]:
    # The operator sets RANK to the pod's number; only a shell sees variables that others add to a pod.
    command = ["sh", "-c", f"exec {shlex.join(_command(job, f'{job.name}-master-0', 'PACELINE_NODE'))}"]
    command[-1] = command[-1].replace("PACELINE_NODE", '"$RANK"')

    def replicas(count: int) -> dict[str, Any]:
        pod = {"containers": [_container(job, command, [])]}
        return {"replicas": count, "restartPolicy": "Never", "template": {"spec": pod}}

    roles = {"Master": replicas(1)} | ({"Worker": replicas(job.nodes - 1)} if job.nodes > 1 else {})
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": _metadata(job),
        "spec": {"pytorchReplicaSpecs": roles},
    }


def _metadata(job: KubernetesJob) -> dict[str, Any]:
    return {"name": job.name} | ({"namespace": job.namespace} if job.namespace else {})


def _command(job: KubernetesJob, first: str, node: str) -> list[str]:
    verb, *words = job.run
    meet = ["--rendezvous", f"{first}:{PORT}", "--nodes", str(job.nodes), "--node-rank", node, "--wait", str(WAIT)]
    return ["paceline", verb, *(meet if job.nodes > 1 else []), *words]


def _container(job: KubernetesJob, command: list[str], more: list[dict[str, Any]]) -> dict[str, Any]:
    secret = {"secretKeyRef": {"name": job.name, "key": "secret"}}
    gpus = {"resources": {"limits": {"nvidia.com/gpu": job.gpus_per_node}}} if job.gpus_per_node else {}
    folder = {"workingDir": job.folder} if job.folder else {}
    environment = [*more, {"name": "PACELINE_SECRET", "valueFrom": secret}]
    # The operator of Kubeflow looks for a container of this name.
    return {"name": "pytorch", "image": job.image, "command": command, **folder, "env": environment, **gpus}


def text_of(found: Sequence[dict[str, Any]]) -> str:
    """The documents as YAML."""
    return "---\n".join("\n".join(_lines(document)) + "\n" for document in found)


def _lines(value: Any) -> Iterator[str]:
    """YAML of a dictionary or a list, one entry on a line."""
    if isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, (dict, list)) and item:
                yield f"{_scalar(key)}:"
                yield from (f"  {line}" for line in _lines(item))
            else:
                yield f"{_scalar(key)}: {_scalar(item)}"
    else:
        for item in value:
            first, *rest = _lines(item) if isinstance(item, (dict, list)) and item else [_scalar(item)]
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)


def _scalar(value: Any) -> str:
    """Text stands in quotation marks wherever YAML might take it for something else."""
    if not isinstance(value, str):
        return json.dumps(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return '"' + "".join(map(_escaped, value)) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if " " <= character <= "~":
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 1 << 8 else f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"
