// SPDX-License-Identifier: Apache-2.0
//
// LibTorch's own c10d::Reducer beside replicate(): the same buckets, and the
// same gradients in bits. Its all-reduce adds in the order of ranks over the shm
// backend, as the exchange does; over Gloo where two ranks leave no order to
// choose. It divides before it adds: with three ranks gradients are multiples
// of three here.
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/small_decoders.h"
#include "support/small_models.h"

#include <random>
#include <gmock/gmock.h>
#include <sherd/c10d_shm.h>
#include <sherd/ddp/replicate.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include "compat/gloo_backend.h"
#include "plan/buckets.h"
#include "world/world_impl.h"

namespace sherd::test {
namespace {

c10::intrusive_ptr<c10d::ProcessGroup> process_group(
    const World& world, bool gloo, const std::string& name) {
  const auto store =
      c10::make_intrusive<c10d::PrefixStore>(name, world.impl()->store);
  auto group = c10::make_intrusive<c10d::ProcessGroup>(
      store, world.rank(), world.size());
  const auto backend = gloo
      ? compat::make_gloo_backend(
            store, world.rank(), world.size(),
            {.device = compat::make_gloo_device({.address = "127.0.0.1"})})
      : make_shm_backend(store, world.rank(), world.size());
  group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::CUSTOM, backend);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  return group;
}

// As DistributedDataParallel makes it once it knows the order of gradients.
class Oracle {
 public:
  Oracle(
      const torch::nn::Module& module,
      const c10::intrusive_ptr<c10d::ProcessGroup>& group,
      const ReplicateOptions& options,
      bool find_unused)
      : leaves_(unique_parameters(module)) {
    std::vector<at::Tensor> reversed;
    std::vector<std::int64_t> indices;
    std::unordered_map<std::size_t, std::string> names;
    for (auto i = leaves_.size(); i-- > 0;) {
      reversed.push_back(leaves_[i].tensor);
      indices.push_back(static_cast<std::int64_t>(i));
      names.emplace(i, leaves_[i].name);
    }
    const auto first = static_cast<std::size_t>(options.first_bucket_bytes);
    const auto other = static_cast<std::size_t>(options.bucket_bytes);
    buckets_ = std::get<0>(c10d::compute_bucket_assignment_by_size(
        reversed, {first, other}, {}, indices));
    reducer_ = std::make_shared<c10d::Reducer>(
        tensors_of(leaves_), buckets_, group,
        std::vector<bool>(leaves_.size(), false), options.bucket_bytes,
        find_unused, /*gradient_as_bucket_view=*/true, names,
        options.first_bucket_bytes, /*skip_all_reduce_unused_params=*/false,
        /*use_python_reducer=*/false, std::vector<std::int64_t>{});
    logger_ = std::make_shared<c10d::Logger>(reducer_);
    reducer_->set_logger(logger_);
  }

  void backward(const torch::Tensor& loss) {
    reducer_->prepare_for_forward();
    reducer_->prepare_for_backward({loss});
    loss.backward();
  }

  std::vector<std::vector<std::string>> buckets() const {
    std::vector<std::vector<std::string>> names;
    for (const auto& bucket : buckets_) {
      auto& row = names.emplace_back();
      for (const auto index : bucket) {
        row.push_back(leaves_[index].name);
      }
    }
    return names;
  }

 private:
  std::vector<NamedLeaf> leaves_;
  std::vector<std::vector<std::size_t>> buckets_;
  std::shared_ptr<c10d::Reducer> reducer_;
  std::shared_ptr<c10d::Logger> logger_;  // The Reducer's, which needs one.
};

template <typename Model>
void expect_as_the_reducer(
    const World& world,
    bool gloo,
    const std::function<Model()>& make,
    const Pass<Model>& pass,
    const ReplicateOptions& options,
    bool find_unused = false) {
  Model ours = make(), theirs = make();
  const auto group = process_group(
      world, gloo, "oracle/" + std::to_string(world.next_number()));
  Oracle oracle(*theirs, group, options, find_unused);
  auto ddp = replicate(*ours, world, options);
  EXPECT_EQ(ddp.report().buckets, oracle.buckets());
  for (int batch = 0; batch < 3; ++batch) {
    oracle.backward(pass(theirs, batch, world.rank()));
    pass(ours, batch, world.rank()).backward();
    const auto found = ours->named_parameters();
    for (const auto& leaf : unique_parameters(*theirs)) {
      const auto& gradient = found[leaf.name].grad();
      ASSERT_EQ(gradient.defined(), leaf.tensor.grad().defined()) << leaf.name;
      if (gradient.defined()) {
        expect_close(
            gradient, leaf.tensor.grad(), 0.0, "gradient of " + leaf.name);
      }
    }
    ours->zero_grad();
    theirs->zero_grad();
  }
  world.barrier();
}

class ReducerOracle : public ::testing::TestWithParam<int> {};

ReplicateOptions buckets_of(std::int64_t first, std::int64_t bytes) {
  ReplicateOptions options;
  options.first_bucket_bytes = first;
  options.bucket_bytes = bytes;
  return options;
}

TEST_P(ReducerOracle, T52SameBucketsAndBitsOverTheSharedMemoryBackend) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto bytes : {300, 4'000, 1'000'000}) {
      const auto options = buckets_of(100, bytes);
      if (world.size() == 3) {
        const Pass<IntegerMlp> triple = [](IntegerMlp& model, int batch,
                                           int rank) {
          return integer_loss(model, batch, rank) * 3;
        };
        expect_as_the_reducer<IntegerMlp>(
            world, false, [] { return IntegerMlp(); }, triple, options);
      } else {
        expect_as_the_reducer<models::Gpt>(
            world, false, [] { return small_gpt({.tied = false}); },
            token_loss<models::Gpt>, options);
      }
    }
  }));
}

TEST_P(ReducerOracle, T53SameBitsWhereRanksUseOtherParameters) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const Pass<Chain> pass = [](Chain& chain, int batch, int rank) {
      const auto layer = static_cast<std::size_t>((batch + rank) % 3);
      return chain->layer(layer).forward(integer_rows(batch, rank, 6)).sum() *
          3;
    };
    expect_as_the_reducer<Chain>(
        world, false, [] { return Chain(3, 6); }, pass, buckets_of(8, 200),
        /*find_unused=*/true);
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    ReducerOracle,
    ::testing::Values(2, 3, 4),
    ::testing::PrintToStringParamName());

TEST(ReducerOracleOverGloo, T52SameBucketsAndBitsWithTwoRanks) {
  expect_all_ok(run_ranks(2, [](World world) {
    expect_as_the_reducer<models::Gpt>(
        world, true, [] { return small_gpt({.tied = false}); },
        token_loss<models::Gpt>, buckets_of(100, 4'000));
  }));
}

// Tables of sizes, in random order; one dtype, since LibTorch leaves the order
// of others open.
TEST(ReducerOracleBuckets, T52AreThoseOfLibTorch) {
  const auto seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto below = [&](int n) {
    return std::uniform_int_distribution<int>(0, n - 1)(random);
  };
  for (int round = 0; round < 200; ++round) {
    const auto count = static_cast<std::size_t>(1 + below(20));
    std::vector<at::Tensor> tensors;
    std::vector<plan::BucketItem> items;
    for (std::size_t i = 0; i < count; ++i) {
      tensors.push_back(torch::zeros({1 + below(50)}));
      items.push_back(
          {.bytes = static_cast<std::int64_t>(tensors.back().nbytes())});
    }
    std::vector<int> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    std::vector<at::Tensor> ordered;
    std::vector<std::int64_t> indices;
    for (const int i : order) {
      ordered.push_back(tensors[static_cast<std::size_t>(i)]);
      indices.push_back(i);
    }
    // Of parameters by their index, as the Reducer has it.
    const std::vector<std::int64_t> limits = {1 + below(100), 1 + below(300)};
    const auto theirs = std::get<0>(c10d::compute_bucket_assignment_by_size(
        ordered,
        {static_cast<std::size_t>(limits[0]),
         static_cast<std::size_t>(limits[1])},
        /*expect_sparse_gradient=*/{}, indices));
    std::vector<std::vector<int>> expected;
    for (const auto& bucket : theirs) {
      expected.emplace_back(bucket.begin(), bucket.end());
    }
    EXPECT_EQ(plan::assign_buckets(items, limits, order), expected);
  }
}

}  // namespace
}  // namespace sherd::test
