// SPDX-License-Identifier: Apache-2.0
//
// Forked children of a test. The parent collects their output, kills or stops one at a named point,
// and kills all that are left after a time limit. Forking (without exec) is safe only because the
// parent, a GoogleTest process, has a single thread: it must not run LibTorch operators that start
// a thread pool before. Thread rule: one thread.
#pragma once

#include <sys/types.h>
#include <chrono>
#include <functional>
#include <string>
#include <vector>
#include "base/clock.h"

namespace sherd::test {

// What to do to a child when it reaches a named point.
struct Strike {
  int child = 0;
  std::string point;
  int signal = 0;  // SIGKILL, SIGSTOP, ...
  // The delay before the strike; meanwhile the parent attends to no child.
  std::chrono::microseconds later{0};
};

struct ChildEnd {
  int exit_code = -1;  // -1 if ended by a signal.
  int signal = 0;
  bool timed_out = false;  // Whether the parent killed it at the time limit.
  std::string output;      // stdout and stderr.
  std::string result;      // What ChildLink::report() sent.
  Instant ended_at{0};
};

// The child's end of the channel to its parent.
class ChildLink {
 public:
  explicit ChildLink(int socket) : socket_(socket) {}

  // Reports that this child is at `point`, and returns when the parent says so: at once, unless a
  // Strike names the point; then perhaps never.
  void reach(const std::string& point);
  // Adds bytes to ChildEnd::result.
  void report(const std::string& bytes);

 private:
  int socket_;
};

struct ChildrenOptions {
  int count = 1;
  std::chrono::milliseconds timeout{60000};
  std::vector<Strike> strikes{};
};

struct ChildrenReport {
  std::vector<ChildEnd> children;
  Instant struck_at{0};  // When the last Strike was carried out.
};

// Runs `body(index, link)` in `count` children, each of which exits with what body returns, without
// running destructors of statics. Returns when all have ended. Children stopped by a Strike are
// killed when all others have ended.
ChildrenReport run_children(
    const ChildrenOptions& options,
    const std::function<int(int index, ChildLink& link)>& body);

}  // namespace sherd::test
