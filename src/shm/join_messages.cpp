// SPDX-License-Identifier: Apache-2.0
#include "shm/join_messages.h"

#include <sstream>
#include "base/check.h"

namespace sherd::shm {
namespace {

constexpr const char* kJoinRequest = "sherd-join-1";
constexpr const char* kFailed = "failed";

}  // namespace

std::string JoinRequest::to_text() const {
  return str(
      kJoinRequest, " ", rank, " ", ranks, " ", bytes, " ", reserve_bytes);
}

std::optional<JoinRequest> JoinRequest::from_text(const std::string& text) {
  std::istringstream in(text);
  std::string magic;
  JoinRequest h;
  const bool whole = static_cast<bool>(
      in >> magic >> h.rank >> h.ranks >> h.bytes >> h.reserve_bytes);
  if (!whole || magic != kJoinRequest || h.rank < 0) {
    return std::nullopt;
  }
  return h;
}

std::string JoinRequest::difference(const JoinRequest& other) const {
  const auto differs = [](const char* what, auto own, auto others) {
    return own == others ? std::string()
                         : str(what, ": ", own, ", found ", others);
  };
  std::string found = differs("ranks", ranks, other.ranks);
  if (found.empty()) {
    found = differs("bytes", bytes, other.bytes);
  }
  return found.empty()
      ? differs("reserve_bytes", reserve_bytes, other.reserve_bytes)
      : found;
}

std::string failure_text(const Status& failure) {
  return str(
      kFailed, " ", static_cast<int>(failure.code()), " ", failure.message());
}

std::optional<Status> failure_from_text(const std::string& text) {
  std::istringstream in(text);
  std::string word;
  int code = 0;
  std::string sentence;
  if (!(in >> word >> code) || word != kFailed || code < 0 ||
      code > static_cast<int>(ErrorCode::kAborted)) {
    return std::nullopt;
  }
  in.ignore(1);
  std::getline(in, sentence);
  return Status(static_cast<ErrorCode>(code), sentence);
}

}  // namespace sherd::shm
