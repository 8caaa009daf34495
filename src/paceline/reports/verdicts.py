"""The verdict that each verb of trials writes, and what lists and comparisons say of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from paceline.charts.chart import Chart
from paceline.plan.plan import Plan
from paceline.reports import bandwidth, converge, fit, plan, scale, sweep
from paceline.trials.bandwidth.verdict import Verdict as BandwidthVerdict
from paceline.trials.converge.series import Verdict as ConvergeVerdict
from paceline.trials.fit.search import Verdict as FitVerdict
from paceline.trials.scale.series import Verdict as ScaleVerdict
from paceline.trials.sweep.search import Verdict as SweepVerdict
from paceline.trials.tune.verdict import Verdict as TuneVerdict


@dataclass(frozen=True, slots=True)
class OfVerb:
    """`headline` is the main result in a few words. `charts`: the main line of the first is compared between runs."""

    title: str  # of its page
    verdict: type[Any]
    headline: Callable[[Any], str]
    charts: Callable[[Any], list[Chart]] = lambda verdict: []

    def read(self, document: Any) -> Any:
        """The verdict. msgspec.ValidationError if the document is none of this verb."""
        return msgspec.convert(document, self.verdict, strict=False)


VERBS = {
    "scale": OfVerb("Scaling", ScaleVerdict, scale.headline, scale.charts),
    "sweep": OfVerb("Batch sizes", SweepVerdict, sweep.headline, sweep.charts),
    "fit": OfVerb("Memory", FitVerdict, fit.headline, fit.charts),
    "tune": OfVerb("Tuning", TuneVerdict, lambda verdict: str(verdict.conclusion.short)),
    "converge": OfVerb("Large batches", ConvergeVerdict, converge.headline, converge.accuracy),
    "bandwidth": OfVerb("Communication", BandwidthVerdict, bandwidth.headline),
    "plan": OfVerb("Plan", Plan, plan.headline),
}
