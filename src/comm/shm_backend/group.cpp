// SPDX-License-Identifier: Apache-2.0
#include "comm/shm_backend/group.h"

#include <algorithm>
#include <exception>
#include <utility>
#include "base/check.h"
#include "comm/shm/mailbox.h"

namespace sherd::comm::shm {
namespace {

// A store's message has its stack below the first line.
std::string first_line_of(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

StringStore strings_of(const c10::intrusive_ptr<c10d::Store>& store) {
  StringStore strings;
  strings.put = [store](const std::string& key, const std::string& value) {
    try {
      store->set(key, value);
    } catch (const std::exception& error) {
      return Status(
          ErrorCode::kPeerLost,
          "[comm] the store is lost: " + first_line_of(error));
    }
    return Status();
  };
  strings.get =
      [store](const std::string& key, Duration at_most) -> Result<std::string> {
    try {
      store->wait(
          {key},
          std::max(
              std::chrono::milliseconds(1),
              std::chrono::duration_cast<std::chrono::milliseconds>(at_most)));
      return store->get_to_str(key);
    } catch (const std::exception& error) {
      return Status(
          ErrorCode::kDeadlineExceeded,
          str("[comm] the store has no ", key, ": ", first_line_of(error)));
    }
  };
  return strings;
}

std::size_t bytes_for(int ranks, const StageOptions& options) {
  return Stage::bytes(ranks, options) + Mailbox::bytes(ranks);
}

}  // namespace

Group::Group(HostSegment joined, const StageOptions& options)
    : segment(std::move(joined)),
      stage(
          segment.at<std::byte>(
              0, Stage::bytes(segment.peers().ranks(), options)),
          segment.peers(),
          clock,
          options) {}

Bytes Group::mailbox_memory() const {
  return segment.at<std::byte>(
      Stage::bytes(stage.ranks(), stage.options()),
      Mailbox::bytes(stage.ranks()));
}

std::shared_ptr<Group> join_group(
    const c10::intrusive_ptr<c10d::Store>& store, const GroupOptions& options) {
  const SteadyClock clock;
  JoinOptions join;
  join.rank = options.rank;
  join.ranks = options.ranks;
  join.names = options.names;
  join.key = "sherd/segment";
  join.store = strings_of(store);
  join.segment.bytes = bytes_for(options.ranks, options.stage);
  join.deadline = options.deadline;
  auto group =
      std::make_shared<Group>(join_segment(join, clock).value(), options.stage);
  group->stage.open(options.deadline).throw_if_failed();
  return group;
}

}  // namespace sherd::comm::shm
