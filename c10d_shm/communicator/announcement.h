// SPDX-License-Identifier: Apache-2.0
//
// The table in which each rank announces a collective before any bytes move: its name, and for each
// other rank where this rank's bytes lie, how many they are, and for how many it has room. In most
// calls a digest of it is all that ranks read from each other (docs/design/shm_backend.md). Refers
// to memory of a segment. Thread rule: one thread; ShmCommunicator orders writing and reading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace sherd::c10d_shm {

class Announcements {
 public:
  static std::size_t bytes(int ranks);

  // `memory` is bytes(ranks) of a segment, aligned to kCacheLine, initially zeros.
  Announcements(std::span<std::byte> memory, int ranks);

  // Longer texts are truncated.
  static constexpr std::size_t kTextMax = 111;
  void set_text(int rank, std::string_view text) const;
  std::string_view text(int rank) const;

  // For each other rank, where the bytes of `rank` for it lie, how many they are, and for how many
  // of its bytes there is room.
  std::span<std::uint64_t> addresses(int rank) const {
    return numbers(rank, 0);
  }
  std::span<std::uint64_t> offered(int rank) const { return numbers(rank, 1); }
  std::span<std::uint64_t> wanted(int rank) const { return numbers(rank, 2); }

  // 64 bits of everything that `rank` announces except addresses, if a call matches as soon as all
  // announce the same; otherwise 0. Two different calls have the same digest once in 2^64.
  std::uint64_t& digest(int rank) const;
  // Whether every rank has the same digest, other than 0: then nothing is a mismatch, and each rank
  // finds largest() in its own line.
  bool all_say_the_same() const;

  // Empty if all ranks announce the same call and each has room for exactly what the others have
  // for it; otherwise one sentence, the same on every rank.
  std::string mismatch(const std::function<std::string(int)>& name) const;

  // The most bytes that any rank has for another one.
  std::size_t largest() const;

 private:
  std::byte* of(int rank) const;
  std::span<std::uint64_t> numbers(int rank, std::size_t which) const;

  std::byte* memory_;
  int ranks_;
};

}  // namespace sherd::c10d_shm
