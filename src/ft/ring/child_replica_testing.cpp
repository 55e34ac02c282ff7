// SPDX-License-Identifier: Apache-2.0
#include "ft/ring/child_replica_testing.h"

namespace sherd::ft::ring {

void ChildReplica::live(const Options& options, int channel) {
  RingOptions ring;
  ring.replica = options.replica;
  ring.incarnation = 100 + options.replica;
  ring.chunk_bytes = 4096;
  ring.slots = 4;
  ring.connect_timeout = kTestDeadline;
  TestMember self(
      ring, options.layout, 1000 + ring.incarnation, options.memory);
  sherd::test::send_over(channel, self.ring.port());
  std::vector<std::uint32_t> words(kWords);
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
}

}  // namespace sherd::ft::ring
