"""The phases of a step: what a worker does at each moment. Phases never overlap, and add up to the step.

This is the only list. The stopwatch measures phases, `Step` has a field for each, a trace has marks named after them,
and pages get the list from the template.
"""

from __future__ import annotations

COMMUNICATION = "communication"  # exposed: waiting for collectives, hidden under nothing
EVALUATION = "evaluation"  # calls in eval mode: no part of training
OTHER = "other"  # the script's own time between the seams
CHECK = "paceline's check"  # Paceline's own checks: no phase, and no part of a step
AT_SEAMS = ("forward", "backward", COMMUNICATION)  # not measured in a script that distributes itself
PHASES = ("data", "forward", "backward", COMMUNICATION, "optimizer", EVALUATION, OTHER)
MARK = "paceline."  # before a phase's name in a trace
