#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of commits.py."""

import unittest

from commits import (
    Commit,
    Journal,
    Kill,
    computed_twice,
    failures,
    first_return,
    longest_gap,
    usual_gap,
)


def at(*times):
    return [Commit(time, step) for step, time in enumerate(times)]


class Gaps(unittest.TestCase):
    def test_gap_counts_when_it_ends_within(self):
        times = [0.0, 1.0, 6.0, 7.0]
        self.assertEqual(longest_gap(times, 2.0, 8.0), 5.0)
        self.assertEqual(longest_gap(times, 6.0, 8.0), 1.0)
        self.assertEqual(longest_gap(times, 2.0, 5.0), 0.0)

    def test_usual_gap_is_of_the_time_before_failures(self):
        self.assertEqual(usual_gap(at(0, 1, 2, 3, 14), 3, warm_up=1), 1)
        self.assertIsNone(usual_gap(at(0, 1), 3))

    def test_commit_right_behind_the_kill_is_no_return(self):
        self.assertEqual(first_return(at(1.0, 2.01, 5.0), 2.0, 9.0), 3.0)
        self.assertIsNone(first_return(at(1.0, 2.01, 5.0), 2.0, 4.0))


class Discarded(unittest.TestCase):
    def test_step_that_takes_longer_is_none(self):
        commits = [Commit(0, 1, 1), Commit(1, 2, 2), Commit(9, 3, 3.2)]
        self.assertEqual(computed_twice(commits, 1, 1, 9), 0)

    def test_step_that_computes_more_is_one(self):
        commits = [Commit(0, 1, 1), Commit(1, 2, 2), Commit(9, 3, 3.9)]
        self.assertEqual(computed_twice(commits, 1, 1, 9), 1)
        self.assertEqual(computed_twice(commits, 1, 9, 10), 0)

    def test_late_look_that_the_next_commit_lacks_is_none(self):
        cpu_s = [0, 1, 2.9, 3.1, 4.1, 6.0, 7.0]
        commits = [Commit(i, i, cpu_s[i]) for i in range(7)]
        self.assertEqual(computed_twice(commits, 1, 1, 4), 0)
        self.assertEqual(computed_twice(commits, 1, 4, 6), 1)

    def test_without_times_of_processors_nothing_is_guessed(self):
        self.assertEqual(computed_twice(at(0, 1, 9), 1, 1, 9), 0)


class Failures(unittest.TestCase):
    def test_each_kill_has_what_happens_until_the_next(self):
        journal = Journal(
            commits=[
                at(*range(11), 15, *range(16, 30)),
                at(*range(11), 18, *range(19, 21), 28, 29),
            ],
            discards=[[11.5, 12.0], [12.5]],
            kills=[Kill(10.5, 1, 10), Kill(20.5, 1, 20)],
        )
        first, second = failures(journal, 30)
        self.assertEqual(first["stall_s"], 5)
        self.assertEqual(first["return_s"], 7.5)
        self.assertEqual(first["discarded_steps"], 2)
        self.assertEqual(first["step_s"], 1)
        self.assertEqual(second["stall_s"], 1)
        self.assertEqual(second["return_s"], 7.5)
        self.assertEqual(second["discarded_steps"], 0)

    def test_replica_that_stays_away_has_no_return(self):
        journal = Journal(
            commits=[at(*range(20)), at(*range(8))],
            discards=[[], []],
            kills=[Kill(7.5, 1, 7)],
        )
        self.assertIsNone(failures(journal, 20)[0]["return_s"])

    def test_steps_that_are_not_told_are_found_by_what_was_computed(self):
        cpu_s = [0, 1, 2, 4, 5]
        survivor = [Commit(i, i, cpu_s[i]) for i in range(5)]
        journal = Journal([survivor, at(0, 1)], kills=[Kill(1.5, 1, 1)])
        self.assertEqual(failures(journal, 9)[0]["discarded_steps"], 1)

    def test_run_without_kills_has_none(self):
        self.assertEqual(failures(Journal([at(0, 1)]), 2), [])


if __name__ == "__main__":
    unittest.main()
