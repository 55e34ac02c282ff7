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
  return str(kJoinRequest, " ", rank, " ", ranks, " ", bytes);
}

std::optional<JoinRequest> JoinRequest::from_text(const std::string& text) {
  std::istringstream in(text);
  std::string magic;
  JoinRequest request;
  const bool whole = static_cast<bool>(
      in >> magic >> request.rank >> request.ranks >> request.bytes);
  if (!whole || magic != kJoinRequest || request.rank < 0) {
    return std::nullopt;
  }
  return request;
}

std::string JoinRequest::difference(const JoinRequest& other) const {
  const auto differs = [](const char* what, auto own, auto others) {
    return own == others ? std::string()
                         : str(what, ": ", own, ", found ", others);
  };
  const std::string found = differs("ranks", ranks, other.ranks);
  return found.empty() ? differs("bytes", bytes, other.bytes) : found;
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
