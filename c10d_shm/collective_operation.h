// SPDX-License-Identifier: Apache-2.0
//
// How the parts of the backend hand an operation over. Private to it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>
#include "base/check.h"
#include "c10d_shm/backend.h"
#include "c10d_shm/communicator/collectives.h"
#include "c10d_shm/tensor_bytes.h"

namespace sherd::c10d_shm {

struct ShmBackend::CollectiveOperation {
  c10d::OpType type;
  const char* title;
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  std::chrono::milliseconds timeout;
  bool async = true;
  std::function<Status(ShmCommunicator& communicator, Duration deadline)> run;
};

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

// The only tensor, or list, of `all`: c10d's calls have one for each device.
template <typename T>
T& single_element(std::vector<T>& all, const char* name) {
  SHERD_CHECK(
      all.size() == 1, "[world] ", name, ": expected 1 tensor, found ",
      all.size());
  return all[0];
}

inline void expect_same_type(
    const at::Tensor& tensor, c10::ScalarType dtype, const char* name) {
  SHERD_CHECK(
      tensor.scalar_type() == dtype, "[world] ", name, ": expected ",
      c10::toString(dtype), " in all tensors, found ",
      c10::toString(tensor.scalar_type()));
}

inline void expect_elements(
    const at::Tensor& tensor, std::int64_t elements, const char* name) {
  SHERD_CHECK(
      tensor.numel() == elements, "[world] ", name, ": expected ", elements,
      " elements in the piece of this rank, found ", tensor.numel());
}

template <typename Count>
void expect_count(std::size_t found, Count expected, const char* name) {
  SHERD_CHECK(
      found == static_cast<std::size_t>(expected), "[world] ", name,
      ": expected ", expected, " pieces, found ", found);
}

inline int checked_root(std::int64_t root, int ranks, const char* name) {
  SHERD_CHECK(
      root >= 0 && root < ranks, "[world] ", name,
      ": expected a root from 0 to ", ranks - 1, ", found ", root);
  return static_cast<int>(root);
}

// One after another; stops at the first failure, as every rank does. Copies go
// back when all are done: a part reads no other one's results.
template <typename Part>
auto run_all(std::vector<Part> parts) {
  return [parts = std::move(parts)](
             ShmCommunicator& communicator, Duration deadline) {
    Status outcome;
    for (auto part = parts.begin(); part != parts.end() && outcome.ok();
         ++part) {
      outcome = part->run(communicator, deadline);
    }
    if (outcome.ok()) {
      for (const Part& part : parts) {
        part.copy_back();
      }
    }
    return outcome;
  };
}

}  // namespace sherd::c10d_shm
