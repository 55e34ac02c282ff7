// SPDX-License-Identifier: Apache-2.0
#include "exchange/backward_status.h"

#include <algorithm>
#include <cstring>
#include <sstream>
#include <utility>
#include "base/check.h"
#include "base/printable.h"
#include "exchange/numbers.h"

namespace sherd::exchange {
namespace {

constexpr std::size_t kReasonBytes = 512;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    lines.push_back(line);
  }
  return lines;
}

}  // namespace

bool is_any_set(const std::vector<bool>& marks) {
  return std::ranges::find(marks, true) != marks.end();
}

void add_marks(std::vector<bool>& to, const std::vector<bool>& marks) {
  to.resize(std::max(to.size(), marks.size()));
  for (std::size_t i = 0; i < marks.size(); ++i) {
    to[i] = to[i] || marks[i];
  }
}

void BackwardStatus::mark_used(
    UnitId unit, const std::vector<bool>& used_here) {
  const auto u = static_cast<std::size_t>(unit);
  used.resize(std::max(used.size(), u + 1));
  add_marks(used[u], used_here);
}

void BackwardStatus::set_end(const BackwardEnd& end) {
  auto marks = std::move(used);
  static_cast<BackwardEnd&>(*this) = end;
  used = std::move(marks);
  for (std::size_t u = 0; u < end.used.size(); ++u) {
    mark_used(static_cast<UnitId>(u), end.used[u]);
  }
}

at::Tensor BackwardStatus::encode(const ModelSpec& model) const {
  std::vector<std::uint8_t> bytes;
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    bytes.push_back(u < late.size() && late[u] ? 1 : 0);
    for (std::size_t i = 0; i < trainable_parameters(model.units[u]); ++i) {
      const bool marked = u < used.size() && i < used[u].size() && used[u][i];
      bytes.push_back(marked ? 1 : 0);
    }
  }
  const auto* digest = reinterpret_cast<const std::uint8_t*>(&whole_units);
  bytes.insert(bytes.end(), digest, digest + sizeof(whole_units));
  bytes.push_back(departed ? 1 : 0);
  bytes.push_back(has_hooks ? 1 : 0);
  bytes.push_back(relayed_from_peer ? 1 : 0);
  const auto begin = bytes.size();
  bytes.resize(begin + kReasonBytes, 0);
  // The last byte stays zero and ends the text.
  const auto reason = shortened(aborted, kReasonBytes - 1);
  std::memcpy(bytes.data() + begin, reason.data(), reason.size());
  return bytes_of(bytes.data(), bytes.size());
}

Result<BackwardOutcome> combine_backward_statuses(
    const ModelSpec& model,
    std::span<const at::Tensor> statuses,
    std::span<const int> world_ranks) {
  BackwardOutcome outcome;
  std::vector<std::uint64_t> whole_units(statuses.size());
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    outcome.late.push_back(false);
    outcome.used.emplace_back(trainable_parameters(model.units[u]), false);
  }
  for (std::size_t rank = 0; rank < statuses.size(); ++rank) {
    const auto* byte = statuses[rank].const_data_ptr<std::uint8_t>();
    for (std::size_t u = 0; u < model.units.size(); ++u) {
      const bool late = *byte++ != 0;
      outcome.late[u] = outcome.late[u] || late;
      for (auto mark : outcome.used[u]) {
        const bool used_there = *byte++ != 0;
        mark = mark || used_there;
      }
    }
    std::memcpy(&whole_units[rank], byte, sizeof(whole_units[rank]));
    byte += sizeof(whole_units[rank]);
    const bool departed_there = *byte++ != 0;
    outcome.diverged = outcome.diverged || departed_there ||
        whole_units[rank] != whole_units[0];
    const bool has_hooks_there = *byte++ != 0;
    outcome.has_hooks = outcome.has_hooks || has_hooks_there;
    const bool relayed_from_peer = *byte++ != 0;
    if (*byte != 0) {
      const auto* reason = reinterpret_cast<const char*>(byte);
      return Status(
          ErrorCode::kAborted,
          relayed_from_peer ? reason
                            : str("[exchange] rank ", world_ranks[rank],
                                  " gave this backward up: ", reason));
    }
  }
  return outcome;
}

std::string first_difference(
    std::span<const std::string> descriptions,
    std::span<const int> world_ranks) {
  const auto expected = lines_of(descriptions[0]);
  for (std::size_t r = 1; r < descriptions.size(); ++r) {
    if (descriptions[r] == descriptions[0]) {
      continue;
    }
    const auto found = lines_of(descriptions[r]);
    std::size_t i = 0;
    while (i < expected.size() && i < found.size() && expected[i] == found[i]) {
      ++i;
    }
    const auto line = [&](const std::vector<std::string>& lines) {
      return i < lines.size() ? lines[i] : std::string("nothing more");
    };
    return str(
        "[exchange] ranks disagree on the model: rank ", world_ranks[0],
        " has ", line(expected), "; rank ", world_ranks[r], " has ",
        line(found));
  }
  return "";
}

}  // namespace sherd::exchange
