// SPDX-License-Identifier: Apache-2.0
//
// A replica in a process of its own that tests can kill. Thread rule: one thread.
#pragma once

#include <unistd.h>
#include <cstdint>
#include <vector>
#include <gtest/gtest.h>
#include "ft/ring/ring_testing.h"
#include "support/forked_process.h"

namespace sherd::ft::ring {

// It joins the epoch that it is sent, begins step 1 and gives its first buckets. It must be created
// before any ring of this process, since it would inherit the ring's sockets.
class ChildReplica : public sherd::test::ForkedProcess {
 public:
  struct Options {
    ReplicaId replica = 0;
    Layout layout;
    int buckets = 0;  // How many buckets it gives.
    Memory memory = Memory::kOwn;
  };
  explicit ChildReplica(const Options& options)
      : ForkedProcess([&](int channel) { live(options, channel); }),
        options_(options),
        port_(sherd::test::receive_over<std::uint16_t>(channel())) {}

  RingMember member() const {
    return {options_.replica, 100 + options_.replica, "127.0.0.1", port_};
  }
  void join(const RingMembership& epoch) {
    std::vector<std::uint32_t> words = {
        static_cast<std::uint32_t>(epoch.epoch.number)};
    for (const auto& member : epoch.members) {
      words.push_back(member.replica);
      words.push_back(member.port);
    }
    words.resize(kWords - 1, 0);
    words.push_back(static_cast<std::uint32_t>(epoch.members.size()));
    EXPECT_GT(
        ::write(channel(), words.data(), words.size() * sizeof(std::uint32_t)),
        0);
  }

 private:
  // The epoch's number, the number of members, and replica and port of up to 32 members.
  static constexpr std::size_t kWords = 66;

  static void live(const Options& options, int channel);

  const Options options_;
  const std::uint16_t port_;
};

}  // namespace sherd::ft::ring
