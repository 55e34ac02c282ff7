// SPDX-License-Identifier: Apache-2.0
//
// While it lives, PyTorch's profiler sees a range such as "sherd::unshard h.3" on this thread. It
// costs a few nanoseconds if nobody profiles. Thread rule: the thread that made it.
#pragma once

#include <string>
#include <ATen/record_function.h>

namespace sherd::exchange {

class ProfiledRange {
 public:
  explicit ProfiledRange(const char* what, const std::string& unit = {})
      : range_(at::RecordScope::FUNCTION) {
    if (range_.isActive()) {
      const auto name = std::string("sherd::") + what;
      range_.before(unit.empty() ? name : name + " " + unit);
    }
  }
  ProfiledRange(const ProfiledRange&) = delete;
  ProfiledRange& operator=(const ProfiledRange&) = delete;

 private:
  at::RecordFunction range_;
};

}  // namespace sherd::exchange
