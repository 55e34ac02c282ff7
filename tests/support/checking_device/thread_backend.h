// SPDX-License-Identifier: Apache-2.0
//
// Backends of c10d between ranks that are threads of one process, each with a checking device of
// its own. A collective is put into the current stream and the call returns at once, as NCCL's
// does; the bytes move when every rank has called. Each rank makes its collectives one after the
// other, over all backends of a network: with NCCL, communicators that start in different orders on
// some ranks may wait for each other forever, which is an error here. Thread rule: any thread; the
// backends of one rank one at a time.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace sherd::test {

class ThreadNetwork {
 public:
  // Work after a collective waits at most this long for ranks that have not started it. Sums of
  // backends may begin with the last rank, as real backends have orders of their own.
  explicit ThreadNetwork(
      int ranks,
      std::chrono::milliseconds deadline = std::chrono::seconds(20),
      bool sums_backwards = false);
  ~ThreadNetwork();
  ThreadNetwork(const ThreadNetwork&) = delete;
  ThreadNetwork& operator=(const ThreadNetwork&) = delete;

  // A rank's end of a communicator of all ranks, or of some of them, ascending and including it.
  // Only asyncOp = false is supported, and only sums, which are made in fp32 or, for larger dtypes,
  // in theirs.
  c10::intrusive_ptr<c10d::Backend> backend(
      int rank, const std::string& communicator);
  c10::intrusive_ptr<c10d::Backend> backend(
      int rank, const std::string& communicator, const std::vector<int>& ranks);

  // How many collectives that rank has started.
  std::int64_t started(int rank) const;

  // From now on backends allocate memory (Backend::allocateTensor), as NCCL's do once they are
  // connected to their device.
  void offer_memory();
  // How many collectives of backends that have allocated anything read or wrote other memory on
  // that rank.
  std::int64_t started_elsewhere(int rank) const;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace sherd::test
