"""Jobs for Kubernetes: what the documents say, and that their text says the same."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.launch.cluster.jobs.manifest import KubernetesJob, documents, text_of

JOB = KubernetesJob(
    name="train",
    image="registry/train:1",
    run=["run", "-n", "12", "--strategy", "mesh(data=2,model=2)", "train.py", "it's", "$HOME", "--lr=0.1"],
    nodes=3,
    secret="s3cret",
    gpus_per_node=4,
)


def test_pods_meet_at_the_first_one() -> None:
    secret, service, job = documents(JOB)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    command = container["command"]
    assert command[:4] == ["paceline", "run", "--rendezvous", "train-0.train:29500"]
    assert command[-8:] == JOB.run[1:]
    assert service["spec"]["clusterIP"] == "None"
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (3, 3)
    assert secret["stringData"] == {"secret": "s3cret"}
    assert "s3cret" not in json.dumps([service, job])


def test_a_pytorch_job_has_a_master_and_workers() -> None:
    _, job = documents(dataclasses.replace(JOB, kubeflow=True))
    roles = job["spec"]["pytorchReplicaSpecs"]
    assert {role: each["replicas"] for role, each in roles.items()} == {"Master": 1, "Worker": 2}
    shell = roles["Master"]["template"]["spec"]["containers"][0]["command"][-1]
    assert '--rendezvous train-master-0:29500 --nodes 3 --node-rank "$RANK"' in shell
    assert "'$HOME'" in shell


def test_one_pod_needs_no_meeting() -> None:
    job = documents(dataclasses.replace(JOB, nodes=1))[-1]
    assert "--rendezvous" not in job["spec"]["template"]["spec"]["containers"][0]["command"]


VALUES: Any = st.recursive(
    st.text()
    | st.integers()
    | st.booleans()
    | st.sampled_from(["yes", "No", "null", "1e3", "- a", "a: b", "#", "0x1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), VALUES, min_size=1, max_size=4))
def test_any_document_is_read_back(document: dict[str, Any]) -> None:
    yaml = pytest.importorskip("yaml")
    assert list(yaml.safe_load_all(text_of([document]))) == [document]


def test_the_published_schemas_take_the_objects() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    for document in documents(JOB):
        validate.validate(document, "1.30", strict=True)
