# SPDX-License-Identifier: Apache-2.0
"""What the commits of replicas say about the failures between them. Pure
functions of times and values; nothing is read or started here."""

import dataclasses
import statistics

# No process comes back so soon: a commit seen this short after a kill was made
# before it.
RETURN_S_MIN = 0.05


@dataclasses.dataclass
class Commit:
    time_s: float
    step: int
    # That its process has computed in all; none: not looked at.
    cpu_s: float | None = None


@dataclasses.dataclass
class Kill:
    time_s: float
    victim: int
    step: int  # The last that the others had.


@dataclasses.dataclass
class Journal:
    """Of one run: per replica its commits, and the times of steps which it
    computed and threw away; none: the system does not tell them."""

    commits: list[list[Commit]]
    discards: list[list[float]] | None = None
    kills: list[Kill] = dataclasses.field(default_factory=list)


def longest_gap(times, begin_s, end_s):
    """Between two commits, the later one in (begin_s, end_s]; 0: none there."""
    pairs = zip(times, times[1:])
    return max((b - a for a, b in pairs if begin_s < b <= end_s), default=0.0)


def usual_gap(commits, end_s, warm_up=5):
    """Median before the first failure; none: too few commits."""
    times = [one.time_s for one in commits if one.time_s <= end_s][warm_up:]
    gaps = [b - a for a, b in zip(times, times[1:])]
    return statistics.median(gaps) if gaps else None


def first_return(commits, kill_s, end_s):
    """From the kill to the first commit of the next life; none: it had none."""
    for one in commits:
        if kill_s + RETURN_S_MIN < one.time_s <= end_s:
            return one.time_s - kill_s
    return None


def computed_twice(commits, kill_s, begin_s, end_s):
    """Commits for which a process computed much more than it did for one before
    the kills: a step that it threw away came before. What it had computed may
    have been looked at too late, which the next commit then lacks: the two are
    seen together."""
    pairs = [
        (one.time_s, one.cpu_s - before.cpu_s)
        for before, one in zip(commits, commits[1:])
        if None not in (before.cpu_s, one.cpu_s)
    ]
    before_s = [cpu_s for time_s, cpu_s in pairs if time_s <= kill_s]
    if not before_s:
        return 0
    usual_s = statistics.median(before_s)
    after_s = [cpu_s for _, cpu_s in pairs[1:]] + [usual_s]
    return sum(
        min(cpu_s, cpu_s + next_s - usual_s) > 1.7 * usual_s
        for (time_s, cpu_s), next_s in zip(pairs, after_s)
        if begin_s < time_s <= end_s
    )


def discarded(journal, replica, begin_s, end_s):
    if journal.discards is not None:
        return sum(begin_s < time <= end_s for time in journal.discards[replica])
    first_s = journal.kills[0].time_s
    return computed_twice(journal.commits[replica], first_s, begin_s, end_s)


def failures(journal, end_s):
    """One record for each kill; what happens until the next one is its doing."""
    first_s = journal.kills[0].time_s if journal.kills else end_s
    usual = [usual_gap(one, first_s) for one in journal.commits]
    usual_s = max((gap for gap in usual if gap is not None), default=0.0)
    ends = [kill.time_s for kill in journal.kills[1:]] + [end_s]
    found = []
    for kill, until in zip(journal.kills, ends):
        survivors = [
            r for r in range(len(journal.commits)) if r != kill.victim
        ]
        times = {
            r: [one.time_s for one in journal.commits[r]] for r in survivors
        }
        found.append({
            "victim": kill.victim,
            "step": kill.step,
            "step_s": usual_s,
            "stall_s": max(
                longest_gap(times[r], kill.time_s, until) for r in survivors
            ),
            "return_s": first_return(
                journal.commits[kill.victim], kill.time_s, until
            ),
            "discarded_steps": max(
                discarded(journal, r, kill.time_s, until)
                for r in survivors
            ),
        })
    return found
