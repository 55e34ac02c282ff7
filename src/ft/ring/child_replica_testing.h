// SPDX-License-Identifier: Apache-2.0
//
// A replica in a process of its own that tests can kill. Thread rule: one thread.
#pragma once

#include <sys/wait.h>
#include <unistd.h>
#include <csignal>
#include <cstdint>
#include <vector>
#include <gtest/gtest.h>
#include "base/descriptor.h"
#include "ft/ring/ring_testing.h"

namespace sherd::ft::ring {

// It joins the epoch that it is sent, begins step 1 and gives its first buckets. It must be created
// before any ring of this process, since it would inherit the ring's sockets.
class ChildReplica {
 public:
  struct Options {
    ReplicaId replica = 0;
    Layout layout;
    int buckets = 0;  // How many buckets it gives.
    Memory memory = Memory::kOwn;
  };
  explicit ChildReplica(const Options& options);
  ~ChildReplica() {
    kill(SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ChildReplica(const ChildReplica&) = delete;
  ChildReplica& operator=(const ChildReplica&) = delete;

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
        ::write(
            channel_.get(), words.data(), words.size() * sizeof(std::uint32_t)),
        0);
  }
  void kill(int signal) { ::kill(pid_, signal); }

 private:
  // The epoch's number, the number of members, and replica and port of up to 32 members.
  static constexpr std::size_t kWords = 66;

  [[noreturn]] static void live(const Options& options, int channel);

  Options options_;
  Descriptor channel_;
  int pid_ = -1;
  std::uint16_t port_ = 0;
};

}  // namespace sherd::ft::ring
