// SPDX-License-Identifier: Apache-2.0
//
// The messages of ranks that join a segment, as text. Pure. Thread rule: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include "base/status.h"

namespace sherd::shm {

// A rank's first message: who it is and what it expects.
struct JoinRequest {
  int rank = 0;
  int ranks = 1;
  std::uint64_t bytes = 0;

  std::string to_text() const;
  // Nothing unless `text` is one.
  static std::optional<JoinRequest> from_text(const std::string& text);

  // What `other` expects unlike this one, e.g. "bytes: 8, found 9"; nothing
  // when they agree.
  std::string difference(const JoinRequest& other) const;
};

// A failure as others are told it, e.g. "failed 3 [shm] rank 2 ...".
std::string failure_text(const Status& failure);
// Nothing unless `text` is one.
std::optional<Status> failure_from_text(const std::string& text);

}  // namespace sherd::shm
