// SPDX-License-Identifier: Apache-2.0
//
// XXH3 (64 bits) of what is transferred: of a chunk, and of the whole as its chunks
// go by, so that nobody stops to read a whole state. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

namespace sherd::ft::transfer {

std::uint64_t digest_of(std::string_view bytes);

class RunningDigest {
 public:
  RunningDigest();
  RunningDigest(const RunningDigest&) = delete;
  RunningDigest& operator=(const RunningDigest&) = delete;
  ~RunningDigest();

  void add(std::string_view bytes);
  // That were added.
  std::uint64_t count() const { return count_; }
  // Of them: the same as digest_of() all at once.
  std::uint64_t value() const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
  std::uint64_t count_ = 0;
};

}  // namespace sherd::ft::transfer
