# SPDX-License-Identifier: Apache-2.0
"""Runs the unittest cases of a test file on every rank of a job.

Usage of a test file: X_test.py PACKAGE_FOLDER SHERD RANKS. `sherd run` starts it
again as each rank, and all cases run there, in the same order.

ranks.py PACKAGE_FOLDER SHERD RANKS X_test Y_test ... runs several files in one job: a
rank takes three seconds to import torch.
"""

import faulthandler
import os
import sys
import unittest


def main(limit_s=240, module="__main__"):
    """At the end of a test file. After `limit_s` seconds threads are printed."""
    package, sherd, ranks = sys.argv[1:4]
    if "RANK" not in os.environ:
        os.execv(sherd, [sherd, "run", "-n", ranks, "--", sys.executable, *sys.argv])
    sys.path.insert(0, package)
    faulthandler.dump_traceback_later(limit_s, exit=True)
    unittest.main(module, argv=sys.argv[:1] + sys.argv[4:], failfast=True, verbosity=2)


def rank():
    return int(os.environ["RANK"])


def size():
    return int(os.environ["WORLD_SIZE"])


if __name__ == "__main__":
    main(limit_s=540, module=None)
