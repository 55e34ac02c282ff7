// SPDX-License-Identifier: Apache-2.0
#include "ft/protocol/identity.h"

#include "base/check.h"
#include "base/hash.h"

namespace sherd::ft {
namespace {

// Two hashes with different beginnings.
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

}  // namespace

Lineage first_lineage(std::uint64_t config, std::uint64_t parameters) {
  return Hash128().add(config).add(parameters).value();
}

Lineage next_lineage(
    const Lineage& base,
    const Attempt& attempt,
    const std::vector<Participant>& participants,
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

std::string name_of(ReplicaId replica) { return str("replica ", replica); }

std::string text_of(const Epoch& epoch) {
  return str("epoch ", epoch.term, ".", epoch.number);
}

std::string text_of(const StateId& state) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string lineage;
  for (int shift = 60; shift >= 32; shift -= 4) {
    lineage += kHex[(state.lineage.high >> shift) & 15U];
  }
  return str("step ", state.step, " (", lineage, ")");
}

std::string text_of(const Attempt& attempt) {
  return str("step ", attempt.step, " of ", text_of(attempt.epoch));
}

}  // namespace sherd::ft
