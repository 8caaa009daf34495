"""One worker keeps the others waiting."""

from __future__ import annotations

from statistics import fmean

from paceline.advise.evidence import Evidence
from paceline.advise.finding import Figure, Finding, percent
from paceline.units import seconds

SHARE = 0.05  # share of a step that the worker is behind the others
KINDS = {"data": "input"}  # all other phases count as compute
OTHERS = 0.25  # share of its cores that other programs use, beyond its peers': less is the operating system
ADVICE = {
    "input": "See what its loader reads: a slow disk, a cold cache, samples that take longer to decode",
    "compute": "See what else runs on its cores or its GPU (clock, temperature), and whether it has more work",
    "elsewhere": "Something else runs on its cores, more than on those of its peers: see whether that is the cause",
}


def find(evidence: Evidence) -> Finding | None:
    """One worker is later at the collectives than the others, which wait for it. The finding says which worker, since
    which step, and whether loading or compute takes longer.

    Fixed by hand. Predicted: the worker is as fast as the others.
    """
    table = evidence.stragglers
    if evidence.workers < 2 or not table.height:
        return None
    row = table.row(0, named=True)
    if not row["slow"] or row["share"] < SHARE:
        return None
    rank, behind, step = row["rank"], row["behind"], evidence.step
    kind = KINDS.get(row["cause"], "compute")
    peers = [_others_on_its_cores(evidence, peer) for peer in table["rank"].to_list() if peer != rank]
    others = _others_on_its_cores(evidence, rank) - fmean(peers)
    disturbed = kind == "compute" and others > OTHERS
    return Finding(
        rule="imbalance",
        title=f"Worker {rank} keeps the others waiting, {seconds(behind)} per step since step {row['since']}: {kind}",
        evidence=[
            Figure("worker", rank),
            Figure("since step", row["since"]),
            Figure("behind the others", behind, "s"),
            Figure("share of a step", behind / step if step else 0.0),
            Figure("cause", kind),
            Figure("the phase that is longer", row["cause"]),
            Figure("longer by", row["excess"], "s"),
            *(
                [Figure("share of its cores used by other programs, beyond that of its peers' cores", others)]
                if disturbed
                else []
            ),
            Figure("step", step, "s"),
        ],
        predicted_gain=step / max(step - behind, 1e-9) if step > behind else None,
        how="the worker is as fast as the others",
        advice=f"{ADVICE['elsewhere' if disturbed else kind]} ({percent(behind / step if step else 0.0)} of a step)",
    )


def _others_on_its_cores(evidence: Evidence, rank: int) -> float:
    """The fraction of a worker's cores used by other programs; 0 if not known, or if it has no cores of its own."""
    workers = [worker for worker in evidence.run.workers if worker.rank == rank] if evidence.run else []
    samples = evidence.samples
    if not workers or not workers[0].cores or not samples:
        return 0.0
    cores, shares = workers[0].cores, []
    for sample in samples:
        mine = [one.cpu for one in sample.workers if one.rank == rank]
        if mine and max(cores) < len(sample.cpu):
            shares.append((sum(sample.cpu[core] for core in cores) - mine[0]) / len(cores))
    return max(fmean(shares), 0.0) if shares else 0.0
