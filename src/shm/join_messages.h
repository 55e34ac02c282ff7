// SPDX-License-Identifier: Apache-2.0
//
// The messages of ranks that join a segment, as text. Pure functions. Thread rule: values.
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
  // Nothing if `text` is no request.
  static std::optional<JoinRequest> from_text(const std::string& text);

  // How the expectations of `other` differ from this one's, e.g. "bytes: 8, found 9"; empty if they
  // agree.
  std::string difference(const JoinRequest& other) const;
};

// A failure as it is reported to other ranks, e.g. "failed 3 [shm] rank 2 ...".
std::string failure_text(const Status& failure);
// Nothing if `text` is no failure.
std::optional<Status> failure_from_text(const std::string& text);

}  // namespace sherd::shm
