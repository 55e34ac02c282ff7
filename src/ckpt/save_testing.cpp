// SPDX-License-Identifier: Apache-2.0
#include "ckpt/save_testing.h"

#include <barrier>
#include <thread>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "base/check.h"
#include "ckpt/dtypes.h"
#include "plan/checkpoint_reads.h"
#include "support/error_of.h"

namespace sherd::ckpt {
namespace {

// Exchanges the texts of ranks that are threads.
class ThreadAllGather {
 public:
  explicit ThreadAllGather(int ranks)
      : barrier_(ranks), texts_(static_cast<std::size_t>(ranks)) {}

  TextAllGather gather(int rank) {
    return [this, rank](
               const std::string& mine,
               const std::string&) -> Result<std::vector<std::string>> {
      texts_[static_cast<std::size_t>(rank)] = mine;
      barrier_.arrive_and_wait();
      auto all = texts_;
      barrier_.arrive_and_wait();
      return all;
    };
  }

 private:
  std::barrier<> barrier_;
  std::vector<std::string> texts_;
};

}  // namespace

TensorPiece save_piece(
    const TensorKey& key, const at::Tensor& tensor, plan::ElementRange range) {
  return {
      .section = key.section,
      .name = key.name,
      .shape = tensor.sizes().vec(),
      .range = range,
      .elements = tensor.view({-1}).narrow(0, range.begin, range.numel())};
}

SavePieces save_shares(const SaveTensors& tensors, int ranks) {
  SavePieces pieces(static_cast<std::size_t>(ranks));
  for (const auto& [key, tensor] : tensors) {
    for (int rank = 0; rank < ranks; ++rank) {
      const auto share = plan::share_of({0, tensor.numel()}, rank, ranks);
      if (!share.empty() || (tensor.numel() == 0 && rank == 0)) {
        pieces[static_cast<std::size_t>(rank)].push_back(
            save_piece(key, tensor, share));
      }
    }
  }
  return pieces;
}

std::vector<Status> save_all(
    FileSystem& files, const SavePieces& pieces, const SaveJob& job) {
  const auto ranks = static_cast<int>(pieces.size());
  ThreadAllGather meeting(ranks);
  std::vector<Status> statuses(pieces.size());
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const SaveContext context{
          .files = files,
          .folder = job.folder,
          .ranks =
              {.rank = rank, .size = ranks, .gather = meeting.gather(rank)},
          .options = job.options};
      const auto r = static_cast<std::size_t>(rank);
      statuses[r] =
          save_pieces(context, job.step, pieces[r], {.values = job.values});
    });
  }
  threads.clear();
  return statuses;
}

Status save_one(
    FileSystem& files, const SavePieces& pieces, const SaveJob& job) {
  const auto statuses = save_all(files, pieces, job);
  for (const auto& status : statuses) {
    EXPECT_EQ(status.message(), statuses.front().message());
  }
  return statuses.front();
}

at::Tensor save_read(
    const CheckpointReader& reader,
    const TensorKey& key,
    plan::ElementRange range,
    int rank) {
  const auto dtype = dtype_named(reader.tensors().at(key).dtype).value();
  auto read = at::empty({range.numel()}, dtype);
  (void)reader.read(key, range, rank, read.mutable_data_ptr());
  return read;
}

std::string save_difference(
    const std::string& folder, const SaveTensors& tensors) {
  return test::error_of([&] {
    const CheckpointReader reader(folder);
    SHERD_CHECK(
        reader.tensors().size() == tensors.size(), "found ",
        reader.tensors().size(), " tensors");
    for (const auto& [key, tensor] : tensors) {
      SHERD_CHECK(reader.tensors().contains(key), "no ", key.name);
      const auto& stored = reader.tensors().at(key);
      SHERD_CHECK(
          stored.shape == tensor.sizes().vec() &&
              stored.dtype == name_of(tensor.scalar_type()),
          "another ", key.name);
      const auto read = save_read(reader, key, {0, tensor.numel()});
      SHERD_CHECK(at::equal(read, tensor.view({-1})), "other ", key.name);
    }
  });
}

}  // namespace sherd::ckpt
