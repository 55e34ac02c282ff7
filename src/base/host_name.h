// SPDX-License-Identifier: Apache-2.0
//
// The name of this host, for messages and to tell hosts apart. Thread rule: any thread.
#pragma once

#include <unistd.h>
#include <array>
#include <string>

namespace sherd {

// Empty if it is unknown.
inline std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

}  // namespace sherd
