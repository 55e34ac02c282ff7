// SPDX-License-Identifier: Apache-2.0
//
// For tests of the shm backend: forked ranks with a backend each, and Gloo's in addition if results
// are compared.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/torch.h>
#include "c10d_shm/backend.h"
#include "compat/gloo_backend.h"
#include "support/ranks.h"
#include "support/scratch_folder.h"

namespace sherd::c10d_shm::test {

using sherd::test::expect_all_ok;
using sherd::test::Rank;
using sherd::test::RankOptions;
using sherd::test::RankReport;

// The world sizes with which every operation is tested.
inline constexpr std::array kWorlds = {1, 2, 3, 4, 7};

struct BackendSetup {
  ShmCommunicatorOptions communicator{};
  std::chrono::milliseconds timeout = std::chrono::seconds(20);
};

// The paths of large messages: directly; through one buffer in several rounds; and everything
// directly, even a single byte.
inline std::vector<ShmCommunicatorOptions> all_transfer_paths() {
  constexpr std::size_t kSmall = std::size_t{16} << 10;
  return {
      {},
      {.single_copy = false,
       .buffer_bytes = kSmall,
       .sum_alone_bytes_max = 512},
      {.single_copy_bytes_min = 1,
       .single_copy_sum_bytes_min = 1,
       .sum_alone_bytes_max = 0}};
}

class BackendRank {
 public:
  BackendRank(
      const std::string& folder, int rank, int ranks, const BackendSetup& setup)
      : store_(c10::make_intrusive<c10d::FileStore>(folder + "/store", ranks)),
        rank_(rank),
        ranks_(ranks) {
    auto options = c10::make_intrusive<ShmBackendOptions>(setup.timeout);
    options->communicator = setup.communicator;
    shm_ =
        c10::make_intrusive<ShmBackend>(prefixed("shm"), rank, ranks, options);
  }

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  ShmBackend& shm() { return *shm_; }
  c10d::Backend& gloo() {
    if (gloo_ == nullptr) {
      gloo_ = compat::make_gloo_backend(
          prefixed("gloo"), rank_, ranks_,
          {.connect_deadline = std::chrono::seconds(20),
           .wait_deadline = std::chrono::seconds(20),
           .device = compat::make_gloo_device({.address = "127.0.0.1"})});
    }
    return *gloo_;
  }
  c10::intrusive_ptr<c10d::Store> prefixed(const std::string& name) const {
    return c10::make_intrusive<c10d::PrefixStore>(name, store_);
  }
  void drop() { shm_.reset(); }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  int ranks_;
  c10::intrusive_ptr<ShmBackend> shm_;
  c10::intrusive_ptr<c10d::Backend> gloo_;
};

// The operation that multiplies by `factor` (a number or a tensor of one element) and sums.
template <typename Factor>
c10d::ReduceOp premul_sum(const Factor& factor) {
  c10d::ReduceOp op;
  op.op_ = c10d::ReduceOp::PREMUL_SUM;
  op.supplement_ = c10::make_intrusive<PreMulSumSupplement>(factor);
  return op;
}

// Runs `body` on forked ranks.
inline RankReport run_backend_ranks(
    int ranks,
    const BackendSetup& setup,
    const std::function<void(BackendRank&, Rank&)>& body,
    const RankOptions& options = {}) {
  const sherd::testing::ScratchFolder folder;
  return sherd::test::run_processes(
      ranks,
      [&](int index, Rank& self) {
        BackendRank ranked(folder.path(), index, ranks, setup);
        body(ranked, self);
      },
      options);
}

}  // namespace sherd::c10d_shm::test
