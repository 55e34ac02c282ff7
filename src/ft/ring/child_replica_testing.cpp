// SPDX-License-Identifier: Apache-2.0
#include "ft/ring/child_replica_testing.h"

#include <sys/socket.h>

namespace sherd::ft::ring {

ChildReplica::ChildReplica(const Options& options) : options_(options) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(0, ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
  channel_ = Descriptor(ends[0]);
  pid_ = ::fork();
  if (pid_ == 0) {
    channel_.close();
    live(options, ends[1]);
  }
  ::close(ends[1]);
  EXPECT_EQ(
      static_cast<ssize_t>(sizeof port_),
      ::read(channel_.get(), &port_, sizeof port_));
}

void ChildReplica::live(const Options& options, int channel) {
  RingOptions ring;
  ring.replica = options.replica;
  ring.incarnation = 100 + options.replica;
  ring.chunk_bytes = 4096;
  ring.slots = 4;
  ring.connect_timeout = kTestDeadline;
  TestMember self(
      ring, options.layout, 1000 + ring.incarnation, options.memory);
  const std::uint16_t port = self.ring.port();
  std::vector<std::uint32_t> words(kWords);
  if (::write(channel, &port, sizeof port) < 0) {
    ::_exit(1);
  }
  while (::read(channel, words.data(), words.size() * sizeof(std::uint32_t)) >
         0) {
    RingMembership epoch{{1, words[0]}, {}};
    for (std::size_t i = 0; i < words[kWords - 1]; ++i) {
      epoch.members.push_back(
          {words[1 + 2 * i], 100 + words[1 + 2 * i], "127.0.0.1",
           static_cast<std::uint16_t>(words[2 + 2 * i])});
    }
    self.ring.join(epoch);
    if (self.events_seen.joined(epoch.epoch)) {
      for (std::size_t b = 0; b < static_cast<std::size_t>(options.buckets);
           ++b) {
        self.ring.give(
            static_cast<int>(b), self.in[b].data(), self.out[b].data());
      }
      self.ring.begin(
          {epoch.epoch, 1}, std::vector<double>(epoch.members.size(), 1.0));
    }
  }
  ::_exit(0);
}

}  // namespace sherd::ft::ring
