// SPDX-License-Identifier: Apache-2.0
//
// Counts the bytes done and reports them. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <sherd/ckpt/checkpoint.h>

namespace sherd::ckpt {

class ProgressMeter {
 public:
  // `report` may be empty, and must outlive it.
  ProgressMeter(const CheckpointProgress& report, std::int64_t bytes)
      : report_(report), bytes_(bytes) {}

  void add(std::int64_t bytes) {
    done_ += bytes;
    if (report_) {
      report_(done_, bytes_);
    }
  }

 private:
  const CheckpointProgress& report_;
  const std::int64_t bytes_;
  std::int64_t done_ = 0;
};

}  // namespace sherd::ckpt
