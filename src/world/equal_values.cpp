// SPDX-License-Identifier: Apache-2.0
#include "world/equal_values.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <string_view>

#include "base/check.h"
#include "base/digest.h"
#include "base/hash.h"
#include "base/text.h"

namespace sherd::world {
namespace {

constexpr std::size_t kRanksNamedMax = 8;

// One line for each: hexadecimal digest, space, name.
std::string text_of(const std::vector<NamedDigest>& digests) {
  std::string text;
  for (const auto& item : digests) {
    text += str(hex(item.digest), " ", item.name, "\n");
  }
  return text;
}

std::vector<NamedDigest> digests_in(std::string_view text) {
  std::vector<NamedDigest> digests;
  while (!text.empty()) {
    const auto line = text.substr(0, text.find('\n'));
    auto& item = digests.emplace_back();
    const auto read = std::from_chars(
        line.data(), line.data() + line.size(), item.digest, 16);
    item.name = std::string(
        line.substr(static_cast<std::size_t>(read.ptr - line.data()) + 1));
    text.remove_prefix(line.size() + 1);
  }
  return digests;
}

// "rank 3", "ranks 0, 2"
std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size() && i < kRanksNamedMax; ++i) {
    text += str(i > 0 ? ", " : "", ranks[i]);
  }
  return ranks.size() > kRanksNamedMax
      ? str(text, " and ", ranks.size() - kRanksNamedMax, " more")
      : text;
}

// Grouped by value; that of rank 0 comes first.
std::string groups_text(
    const std::vector<std::vector<NamedDigest>>& by_rank, std::size_t item) {
  std::vector<int> as_first;
  std::vector<int> others;
  std::set<std::uint64_t> values;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    const auto digest = by_rank[rank][item].digest;
    const bool same = digest == by_rank[0][item].digest;
    (same ? as_first : others).push_back(static_cast<int>(rank));
    values.insert(digest);
  }
  return str(
      ranks_text(as_first), as_first.size() == 1 ? " holds" : " hold",
      " one value, ", ranks_text(others),
      values.size() == 2 ? " another" : " others");
}

}  // namespace

std::uint64_t digest_of(const at::Tensor& tensor) {
  const auto plain = tensor.detach().contiguous().cpu();
  Hash64 hash;
  hash.add(static_cast<std::uint64_t>(plain.scalar_type()));
  for (const auto size : plain.sizes()) {
    hash.add(static_cast<std::uint64_t>(size));
  }
  if (plain.numel() > 0) {
    hash.add(sherd::digest_of(plain.const_data_ptr(), plain.nbytes()));
  }
  return hash.value();
}

std::string difference_of(
    const std::vector<std::vector<NamedDigest>>& by_rank) {
  const auto& first = by_rank.front();
  for (std::size_t rank = 1; rank < by_rank.size(); ++rank) {
    const auto& other = by_rank[rank];
    for (std::size_t i = 0; i < std::max(first.size(), other.size()); ++i) {
      if (i >= first.size() || i >= other.size()) {
        return str(
            i < first.size() ? first[i].name : other[i].name, " is missing on ",
            "rank ", i < first.size() ? rank : 0);
      }
      if (first[i].name != other[i].name) {
        return str(
            "rank 0 has ", first[i].name, " where rank ", rank, " has ",
            other[i].name);
      }
    }
  }
  std::vector<std::size_t> different;
  for (std::size_t i = 0; i < first.size(); ++i) {
    if (std::ranges::any_of(by_rank, [&](const auto& rank) {
          return rank[i].digest != first[i].digest;
        })) {
      different.push_back(i);
    }
  }
  return different.empty()
      ? ""
      : str(first[different.front()].name, ": ",
            groups_text(by_rank, different.front()), " (", different.size(),
            " of ", first.size(), " tensors differ)");
}

std::string difference_between(
    const World& world, const std::vector<NamedDigest>& mine) {
  const auto text = text_of(mine);
  Hash64 hash;
  hash.add(text);
  // Sent as doubles, which hold 32 bits each without loss.
  constexpr std::uint64_t kLow = 0xffffffff;
  const auto all = world.all_gather(
      {static_cast<double>(hash.value() >> 32U),
       static_cast<double>(hash.value() & kLow)});
  if (std::ranges::all_of(
          all, [&](const auto& rank) { return rank == all.front(); })) {
    return "";
  }
  std::vector<std::vector<NamedDigest>> by_rank;
  for (const auto& one : world.all_gather_texts(text)) {
    by_rank.push_back(digests_in(one));
  }
  return difference_of(by_rank);
}

}  // namespace sherd::world
