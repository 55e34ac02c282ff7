// SPDX-License-Identifier: Apache-2.0
#include "ft/protocol/identity.h"

#include <algorithm>
#include <string_view>

#include "base/check.h"
#include "base/hash.h"
#include "base/text.h"

namespace sherd::ft {
namespace {

// Two hashes with different seeds.
class Hash128 {
 public:
  Hash128() { low_.add(std::uint64_t{1}); }
  Hash128& add(std::uint64_t word) {
    high_.add(word);
    low_.add(word);
    return *this;
  }
  Hash128& add(std::int64_t number) {
    return add(static_cast<std::uint64_t>(number));
  }
  Lineage value() const { return {high_.value(), low_.value()}; }

 private:
  Hash64 high_;
  Hash64 low_;
};

// The number of hexadecimal digits in 64 bits.
constexpr std::size_t kHalf = 16;

}  // namespace

Lineage first_lineage(std::uint64_t config, std::uint64_t parameters) {
  return Hash128().add(config).add(parameters).value();
}

Lineage next_lineage(
    const Lineage& base,
    const Attempt& attempt,
    const std::vector<Member>& participants,
    std::uint64_t gradients) {
  Hash128 hash;
  hash.add(base.high).add(base.low);
  hash.add(attempt.epoch.term).add(attempt.epoch.number).add(attempt.step);
  for (const auto& one : participants) {
    hash.add(std::uint64_t{one.replica}).add(one.incarnation);
    constexpr unsigned kLeftOutShift = 32;  // Lists are much shorter.
    hash.add(
        std::uint64_t{one.samples.size()} |
        std::uint64_t{one.left_out.size()} << kLeftOutShift);
    for (const auto* ranges : {&one.samples, &one.left_out}) {
      for (const auto& range : *ranges) {
        hash.add(range.begin).add(range.end);
      }
    }
  }
  return hash.add(gradients).value();
}

const Member* find(
    const std::vector<Member>& members,
    ReplicaId replica,
    Incarnation incarnation) {
  const auto found = std::ranges::find_if(members, [&](const Member& one) {
    return one.replica == replica && one.incarnation == incarnation;
  });
  return found == members.end() ? nullptr : &*found;
}

std::string name_of(ReplicaId replica) { return str("replica ", replica); }

std::string text_of(const Epoch& epoch) {
  return str("epoch ", epoch.term, ".", epoch.number);
}

std::string text_of(const StateId& state) {
  return str(
      "step ", state.step, " (", hex(state.lineage.high).substr(0, 8), ")");
}

std::string text_of(const Attempt& attempt) {
  return str("step ", attempt.step, " of ", text_of(attempt.epoch));
}

std::string name_of(const StateId& state) {
  return str(
      "step ", state.step, " of ", hex(state.lineage.high),
      hex(state.lineage.low));
}

StateId state_named(const std::string& name) {
  constexpr std::string_view kBegin = "step ";
  constexpr std::string_view kMiddle = " of ";
  const std::string_view text = name;
  const auto middle = text.find(kMiddle);
  if (text.starts_with(kBegin) && middle != std::string_view::npos &&
      text.size() == middle + kMiddle.size() + 2 * kHalf) {
    const auto lineage = text.substr(middle + kMiddle.size());
    const auto step = parse_number<std::int64_t>(
        text.substr(kBegin.size(), middle - kBegin.size()));
    const auto high = parse_number<std::uint64_t>(lineage.substr(0, kHalf), 16);
    const auto low = parse_number<std::uint64_t>(lineage.substr(kHalf), 16);
    const StateId state{step.value_or(-1), {high.value_or(0), low.value_or(0)}};
    if (state.step >= 0 && name_of(state) == name) {
      return state;
    }
  }
  throw Error(
      str("[ft] expected the name of a state, such as \"", name_of(StateId()),
          "\", found \"", name, "\""));
}

}  // namespace sherd::ft
