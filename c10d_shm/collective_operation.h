// SPDX-License-Identifier: Apache-2.0
//
// An operation of the backend: the collectives of bytes that it consists of, and the tensors whose
// bytes they move. The files backend_*.cpp translate c10d's calls into these. Private to the
// backend.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>
#include "base/check.h"
#include "c10d_shm/backend.h"
#include "c10d_shm/communicator/collectives.h"
#include "c10d_shm/tensor_bytes.h"

namespace sherd::c10d_shm {

// One collective. It keeps the tensors alive whose bytes it moves.
struct CollectivePart {
  std::function<Status(ShmCommunicator& communicator, Duration deadline)> run{};
  // Copied back when all parts of an operation are done: no part reads the results of another.
  std::vector<TensorBytes> outputs{};
};

// Moves the part, while an initialiser list would copy what it holds.
inline std::vector<CollectivePart> only(CollectivePart part) {
  std::vector<CollectivePart> parts;
  parts.push_back(std::move(part));
  return parts;
}

// Its parts run one after another until one fails, the same one on every rank.
struct ShmBackend::CollectiveOperation {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* title = "";
  Tensors inputs{};
  Tensors outputs{};
  std::vector<CollectivePart> parts{};
  std::chrono::milliseconds timeout{0};
  bool async = true;
};

template <typename Opts>
C10dWork ShmBackend::issue(CollectiveOperation operation, const Opts& opts) {
  operation.timeout = opts.timeout;
  operation.async = opts.asyncOp;
  return issue(std::move(operation));
}

// "all_gather(Float)".
inline std::string call_text(
    const char* name, c10::ScalarType dtype, const std::string& more = {}) {
  std::string text = name;
  text += '(';
  text += more;
  text += more.empty() ? "" : ", ";
  text += c10::toString(dtype);
  text += ')';
  return text;
}

// "part 2 of 3", for one of several collectives of a call: calls of different length do not match.
// Empty for the only one.
inline std::string part_text(std::size_t index, std::size_t parts) {
  return parts == 1 ? std::string() : str("part ", index + 1, " of ", parts);
}

// The only tensor, or list, in `all`: c10d's calls have one for each device.
template <typename T>
T& single_element(std::vector<T>& all, const char* name) {
  SHERD_CHECK(
      all.size() == 1, "[c10d_shm] ", name, ": expected 1 tensor, found ",
      all.size());
  return all[0];
}

inline void expect_same_type(
    const at::Tensor& tensor, c10::ScalarType dtype, const char* name) {
  SHERD_CHECK(
      tensor.scalar_type() == dtype, "[c10d_shm] ", name, ": expected ",
      c10::toString(dtype), " in all tensors, found ",
      c10::toString(tensor.scalar_type()));
}

inline void expect_elements(
    const at::Tensor& tensor, std::int64_t elements, const char* name) {
  SHERD_CHECK(
      tensor.numel() == elements, "[c10d_shm] ", name, ": expected ", elements,
      " elements in the piece of this rank, found ", tensor.numel());
}

template <typename Count>
void expect_count(std::size_t found, Count expected, const char* name) {
  SHERD_CHECK(
      found == static_cast<std::size_t>(expected), "[c10d_shm] ", name,
      ": expected ", expected, " pieces, found ", found);
}

inline int checked_root(std::int64_t root, int ranks, const char* name) {
  SHERD_CHECK(
      root >= 0 && root < ranks, "[c10d_shm] ", name,
      ": expected a root from 0 to ", ranks - 1, ", found ", root);
  return static_cast<int>(root);
}

}  // namespace sherd::c10d_shm
