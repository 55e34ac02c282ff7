// SPDX-License-Identifier: Apache-2.0
//
// Decides which slices one kernel call can update together. Small parameters (norms, biases) lie
// between large ones in a flat, and a call for each would cost more than their arithmetic. Looks
// only at addresses and counts. Thread rule: pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace sherd::optim {

// Flats align parameters to 64 bytes, so padding is never longer.
inline constexpr std::int64_t kPaddingBytesMax = 64;

struct SliceUpdate {
  struct Location {
    std::uintptr_t storage = 0;  // Addresses compare only within a storage.
    std::uintptr_t address = 0;
  };

  Location parameter;
  Location gradient;
  Location state;
  std::int64_t bytes = 0;
  // How many bytes after the piece are zero in both parameter and gradient. Their state is zero,
  // too, and zeros stay zero through weight decay, momentum and Adam (0 / (0 + epsilon), epsilon >
  // 0), so a kernel may run over them.
  std::int64_t zero_bytes_after = 0;
  int kind = 0;  // Pieces of two kinds (settings, dtype) need two calls.
  std::int64_t updates = 0;  // Two different counts need two calls, too.
  bool has_gradient = false;
};

struct UpdateRun {
  std::size_t first = 0;   // Index of its first piece.
  std::size_t count = 0;   // Consecutive pieces.
  std::int64_t bytes = 0;  // From the first byte to the last, with padding.
  std::string_view ends_because;  // Why the next piece is not part of it.
};

// Returns maximal runs, in order; a piece without a gradient is in none. Pieces should be in order
// of parameter memory; otherwise runs are merely shorter.
std::vector<UpdateRun> plan_update_runs(const std::vector<SliceUpdate>& pieces);

}  // namespace sherd::optim
