// SPDX-License-Identifier: Apache-2.0
//
// Tells the process that made it from one forked since, which has a copy of what this process has
// of a group, but neither its threads nor its rank. To ask costs a load. Thread rule: any thread.
#pragma once

namespace sherd::c10d_shm {

class ForkMark {
 public:
  ForkMark();
  ~ForkMark();
  ForkMark(const ForkMark&) = delete;
  ForkMark& operator=(const ForkMark&) = delete;

  bool in_child() const { return *made_here_ == 0; }
  // Throws in a child.
  void expect_not_forked() const;

 private:
  int* made_here_;  // A page that the kernel clears in a child.
};

}  // namespace sherd::c10d_shm
