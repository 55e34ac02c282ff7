// SPDX-License-Identifier: Apache-2.0
#include "c10d_shm/communicator/announcement.h"

#include <algorithm>
#include <cstring>
#include "base/check.h"
#include "c10d_shm/communicator/bytes.h"
#include "shm/counter.h"

namespace sherd::c10d_shm {
namespace {

constexpr std::size_t kTextBytes = Announcements::kTextMax + 1;
static_assert(kTextBytes % sizeof(std::uint64_t) == 0);

constexpr std::size_t kDigestBytes = sizeof(std::uint64_t);

std::size_t stride(int ranks) {
  const std::size_t used =
      kDigestBytes + kTextBytes + 3 * index(ranks) * sizeof(std::uint64_t);
  return shm::round_up_to_lines(used);
}

}  // namespace

std::size_t Announcements::bytes(int ranks) {
  return index(ranks) * stride(ranks);
}

Announcements::Announcements(std::span<std::byte> memory, int ranks)
    : memory_(memory.data()), ranks_(ranks) {
  SHERD_ASSERT(
      shm::has_room(memory, bytes(ranks)), "memory for all announcements");
}

std::byte* Announcements::of(int rank) const {
  return memory_ + index(rank) * stride(ranks_);
}

std::uint64_t& Announcements::digest(int rank) const {
  return *reinterpret_cast<std::uint64_t*>(of(rank));
}

bool Announcements::all_say_the_same() const {
  const std::uint64_t first = digest(0);
  for (int r = 1; r < ranks_; ++r) {
    if (digest(r) != first) {
      return false;
    }
  }
  return first != 0;
}

void Announcements::set_text(int rank, std::string_view text) const {
  const std::size_t size = std::min(text.size(), kTextMax);
  std::byte* const begin = of(rank) + kDigestBytes;
  std::memcpy(begin, text.data(), size);
  std::memset(begin + size, 0, 1);
}

std::string_view Announcements::text(int rank) const {
  const auto* begin = reinterpret_cast<const char*>(of(rank) + kDigestBytes);
  return {begin, ::strnlen(begin, kTextMax)};
}

std::span<std::uint64_t> Announcements::numbers(
    int rank, std::size_t which) const {
  auto* first =
      reinterpret_cast<std::uint64_t*>(of(rank) + kDigestBytes + kTextBytes);
  return {first + which * index(ranks_), index(ranks_)};
}

std::string Announcements::mismatch(
    const std::function<std::string(int)>& name) const {
  for (int r = 1; r < ranks_; ++r) {
    if (text(r) != text(0)) {
      return str(
          "[c10d_shm] expected ", text(0), ", which ", name(0),
          " calls, found ", text(r), " of ", name(r));
    }
  }
  for (int s = 0; s < ranks_; ++s) {
    const auto has = offered(s);
    for (int d = 0; d < ranks_; ++d) {
      const std::uint64_t room = wanted(d)[index(s)];
      if (s != d && has[index(d)] != room) {
        return str(
            "[c10d_shm] ", text(0), ": expected ", room, " bytes of ", name(s),
            " for ", name(d), ", which has room for them, found ",
            has[index(d)]);
      }
    }
  }
  return {};
}

std::size_t Announcements::largest() const {
  std::uint64_t most = 0;
  for (int s = 0; s < ranks_; ++s) {
    const auto has = offered(s);
    for (int d = 0; d < ranks_; ++d) {
      most = s == d ? most : std::max(most, has[index(d)]);
    }
  }
  return most;
}

}  // namespace sherd::c10d_shm
