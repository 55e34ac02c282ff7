// SPDX-License-Identifier: Apache-2.0
//
// Mixed precision of whole models equals one process that does it by hand: fp32
// values, forward and backward of every rank on a copy in bf16, gradients added
// up in fp32 (T20, T21).
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/small_decoders.h"

#include <map>
#include "exchange/exchange.h"

namespace sherd::test {
namespace {

constexpr auto kBf16 = torch::kBFloat16;

struct MixedParity {
  int steps = 3;
  int micro_batches = 1;
  FullyShardOptions shard;
};

FullyShardOptions bf16(
    std::optional<at::ScalarType> reduce_dtype = std::nullopt) {
  FullyShardOptions options;
  options.mixed_precision = {
      .param_dtype = kBf16, .reduce_dtype = reduce_dtype};
  return options;
}

// The copy in which the reference runs, and what the optimizer holds.
template <typename Model>
class ByHand {
 public:
  // Parameters of the copy take the dtypes of `sharded`.
  ByHand(
      const std::function<Model()>& make,
      const torch::nn::Module& sharded,
      const FullyShardOptions& options)
      : masters_(make()),
        low_(make()),
        leaves_(unique_parameters(*masters_)),
        low_leaves_(unique_parameters(*low_)),
        reduce_(options.mixed_precision.reduce_dtype),
        options_(options) {
    const auto dtypes = sharded.named_parameters();
    for (const auto& leaf : low_leaves_) {
      leaf.tensor.set_data(
          leaf.tensor.detach().to(dtypes[leaf.name].scalar_type()));
    }
  }

  const std::vector<NamedLeaf>& leaves() const { return leaves_; }

  // Adds the mean of all ranks' gradients; the loss of `rank`.
  torch::Tensor backward(
      const Pass<Model>& pass, int batch, const World& world) {
    const auto add = [](torch::Tensor& sum, const torch::Tensor& next) {
      sum = sum.defined() && next.defined() ? sum + next
          : sum.defined()                   ? sum
                                            : next;
    };
    std::vector<torch::Tensor> sums(leaves_.size());
    torch::Tensor mine;
    for (const auto& ranks : added_together(world, options_)) {
      std::vector<torch::Tensor> of_host(leaves_.size());
      for (const int rank : ranks) {
        auto loss = pass(low_, batch, rank);
        loss.backward();
        mine = rank == world.rank() ? loss.detach() : mine;
        for (std::size_t i = 0; i < leaves_.size(); ++i) {
          auto& grad = low_leaves_[i].tensor.mutable_grad();
          if (grad.defined()) {
            add(of_host[i],
                grad.to(reduce_.value_or(grad.scalar_type()))
                    .to(torch::kFloat));
            grad.reset();
          }
        }
      }
      for (std::size_t i = 0; i < leaves_.size(); ++i) {
        add(sums[i], of_host[i]);
      }
    }
    for (std::size_t i = 0; i < leaves_.size(); ++i) {
      auto& grad = leaves_[i].tensor.mutable_grad();
      if (sums[i].defined()) {
        sums[i].mul_(1.0 / world.size());
        grad = grad.defined() ? grad + sums[i] : sums[i];
      }
    }
    return mine;
  }

  void publish() {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < leaves_.size(); ++i) {
      low_leaves_[i].tensor.copy_(leaves_[i].tensor);
    }
  }

 private:
  Model masters_;
  Model low_;
  std::vector<NamedLeaf> leaves_;
  std::vector<NamedLeaf> low_leaves_;
  std::optional<at::ScalarType> reduce_;
  FullyShardOptions options_;
};

template <typename Model>
ShardReport expect_mixed_parity(
    const World& world,
    const std::function<Model()>& make,
    const Pass<Model>& pass,
    const MixedParity& options) {
  Model model = make();
  const Slicing slicing(*make(), world, options.shard);
  auto fsdp = fully_shard(*model, world, options.shard);
  ByHand<Model> reference(make, *model, options.shard);
  const auto step =
      steps_of<torch::optim::SGD>(torch::optim::SGDOptions(0.25).momentum(0.9));
  const auto step_reference = step(tensors_of(reference.leaves()));
  const auto step_shards = step(fsdp.parameters());
  for (int i = 0; i < options.steps; ++i) {
    for (int micro = 0; micro < options.micro_batches; ++micro) {
      const int batch = i * options.micro_batches + micro;
      const auto expected = reference.backward(pass, batch, world);
      auto found = pass(model, batch, world.rank());
      found.backward();
      expect_close(
          found.detach(), expected, 0.0,
          "loss of batch " + std::to_string(batch));
    }
    expect_gradients(slicing, reference.leaves(), fsdp, 0.0);
    step_reference();
    step_shards();
    reference.publish();
    fsdp.publish();
  }
  const auto scope = fsdp.summon_full_parameters({.read_only = true});
  for (const auto& leaf : reference.leaves()) {
    const auto value = leaf.tensor.detach();
    expect_close(scope.tensor(leaf.name), value, 0.0, leaf.name);
    const auto shown = model->named_parameters()[leaf.name].detach();
    expect_close(shown, value.to(shown.scalar_type()), 0.0, leaf.name);
  }
  return fsdp.report();
}

models::Gpt tied_gpt() { return small_gpt({.tied = true}); }
models::Llama llama() { return small_llama({.tied = false}); }

class MixedPrecisionParity : public testing::TestWithParam<int> {};

TEST_P(MixedPrecisionParity, T20GptInEveryStrategy) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy :
         {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
      MixedParity options;
      options.shard = bf16();
      options.shard.strategy = strategy;
      expect_mixed_parity<models::Gpt>(
          world, tied_gpt, token_loss<models::Gpt>, options);
    }
  }));
}

TEST_P(MixedPrecisionParity, T20LlamaWithGradientsReducedInFp32) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    MixedParity options;
    options.shard = bf16(torch::kFloat);
    expect_mixed_parity<models::Llama>(
        world, llama, token_loss<models::Llama>, options);
  }));
}

TEST_P(MixedPrecisionParity, T21MicroBatchesAddUpInFp32) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    MixedParity options;
    options.micro_batches = 3;
    options.shard = bf16(torch::kFloat);
    expect_mixed_parity<models::Gpt>(
        world, tied_gpt, token_loss<models::Gpt>, options);
  }));
}

// In bf16, 256 + 0.5 is 256.
TEST_P(MixedPrecisionParity, T21NoSyncAddsUpInFp32) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    torch::manual_seed(1);
    torch::nn::Linear model(4, 3);
    auto fsdp = fully_shard(*model, world, bf16(torch::kFloat));
    const auto backward = [&](double x) {
      model->forward(torch::full({1, 4}, x)).sum().backward();
    };
    {
      const auto scope = fsdp.no_sync();
      backward(256.0);
      backward(0.5);
    }
    backward(0.5);
    for (const auto& item : fsdp.named_parameters().items) {
      const double expected = item.name == "weight" ? 257.0 : 3.0;
      expect_close(
          item.slice.grad(), torch::full_like(item.slice, expected), 0.0,
          item.name);
    }
  }));
}

// Learns one batch by heart.
template <typename Model>
void expect_learns(Model model, World& world) {
  auto fsdp = fully_shard(*model, world, bf16());
  torch::optim::AdamW adamw(
      fsdp.parameters(), torch::optim::AdamWOptions(1e-2));
  double first = 0;
  double last = 0;
  for (int step = 0; step < 30; ++step) {
    auto loss = token_loss(model, 0, world.rank());
    last = loss.template item<double>();
    first = step == 0 ? last : first;
    loss.backward();
    adamw.step();
    fsdp.publish();
    adamw.zero_grad();
  }
  EXPECT_LT(last, 0.5 * first);
}

TEST_P(MixedPrecisionParity, T20GptAndLlamaLearnInBf16) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    expect_learns(tied_gpt(), world);
    expect_learns(llama(), world);
  }));
}

// Fp32 inputs, so that convolutions, norms and products meet other dtypes.
struct MixedNetImpl : torch::nn::Module {
  torch::nn::Conv1d conv{nullptr};
  torch::nn::BatchNorm1d batch_norm{nullptr};
  torch::nn::LayerNorm layer_norm{nullptr};
  torch::nn::Linear head{nullptr};
  MixedNetImpl() {
    torch::manual_seed(4);
    conv = register_module("conv", torch::nn::Conv1d(3, 5, 2));
    batch_norm = register_module("batch_norm", torch::nn::BatchNorm1d(5));
    layer_norm = register_module(
        "layer_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})));
    head = register_module("head", torch::nn::Linear(6, 1));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return head(layer_norm(torch::relu(batch_norm(conv(x)))));
  }
};
TORCH_MODULE(MixedNet);

torch::Tensor fp32_inputs(int batch, int rank) {
  torch::manual_seed(1000 * batch + rank);
  return torch::randn({4, 3, 7});
}

TEST_P(MixedPrecisionParity, T20AnUnmodifiedModelRunsOnFp32Inputs) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    MixedParity options;
    options.shard = bf16();
    options.shard.units = units::by_name("*");
    expect_mixed_parity<MixedNet>(
        world, [] { return MixedNet(); },
        [](MixedNet& model, int batch, int rank) {
          const auto x = fp32_inputs(batch, rank);
          // The reference has no casts but this one; bf16 is all that follows.
          const bool sharded = model->conv->weight.key_set().has(
              c10::DispatchKey::TESTING_ONLY_GenericWrapper);
          const auto y = model->forward(sharded ? x : x.to(kBf16));
          EXPECT_EQ(y.scalar_type(), kBf16);
          return y.to(torch::kFloat).square().mean();
        },
        options);
  }));
}

TEST_P(MixedPrecisionParity, T20DtypesAndBytesAreWhatWasAskedFor) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    MixedNet model;
    auto options = bf16(torch::kFloat);
    options.units = units::none();
    options.strategy = Strategy::kShardGradOp;
    const auto units = fsdp::build_units(
        *model, options.units, world.size(), nullptr, options.mixed_precision);
    auto fsdp = fully_shard(*model, world, options);
    for (const auto& item : model->named_parameters()) {
      const bool kept = item.key().starts_with("batch_norm");
      EXPECT_EQ(item.value().scalar_type(), kept ? torch::kFloat : kBf16)
          << item.key();
    }
    const auto x = fp32_inputs(0, world.rank()).requires_grad_();
    model->forward(x).square().mean().backward();
    EXPECT_EQ(x.grad().scalar_type(), torch::kFloat);
    for (const auto& item : fsdp.named_parameters().items) {
      EXPECT_EQ(item.slice.scalar_type(), torch::kFloat) << item.name;
      EXPECT_EQ(item.slice.grad().scalar_type(), torch::kFloat) << item.name;
    }
    const auto report = fsdp.report();
    EXPECT_EQ(
        report.unsharded_bytes,
        world.size() == 1 ? 0 : exchange::unit_bytes(units.units[0]));
    const auto norm = fsdp.clip_grad_norm(1e-3);
    double sum = 0;
    for (const auto& item : fsdp.named_parameters().items) {
      sum += item.slice.grad().to(torch::kDouble).square().sum().item<double>();
    }
    const auto all = world.all_gather({sum});
    double total = 0;
    for (const auto& row : all) {
      total = world.size() == 1 ? row[0] : total + row[0];
    }
    EXPECT_GT(norm, 1e-3);
    EXPECT_NEAR(std::sqrt(total), 1e-3, 1e-7);
  }));
}

TEST_P(MixedPrecisionParity, T43ASummonKeepsTheBitsThatNobodyWrote) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy : {Strategy::kFullShard, Strategy::kNoShard}) {
      MixedNet plain;
      MixedNet model;
      auto options = bf16();
      options.strategy = strategy;
      auto fsdp = fully_shard(*model, world, options);
      const torch::NoGradGuard no_grad;
      {
        auto scope = fsdp.summon_full_parameters();
        model->head->weight.fill_(0.3);
        scope.tensor("conv.bias").fill_(0.3);
      }
      const auto scope = fsdp.summon_full_parameters({.read_only = true});
      for (const auto& item : plain->named_parameters()) {
        auto expected = item.value().detach();
        if (item.key() == "head.weight") {
          expected =
              torch::full_like(expected, 0.3).to(kBf16).to(torch::kFloat);
        } else if (item.key() == "conv.bias") {
          expected = torch::full_like(expected, 0.3);
        }
        expect_close(scope.tensor(item.key()), expected, 0.0, item.key());
      }
    }
  }));
}

TEST_P(MixedPrecisionParity, AConversionAfterShardingIsStillAnError) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    MixedNet model;
    auto fsdp = fully_shard(*model, world, bf16());
    model->to(torch::kFloat);
    const auto error = error_of([&] {
      (void)model->forward(fp32_inputs(0, world.rank()));
      fsdp.publish();
    });
    EXPECT_NE(error.find("was given another storage"), std::string::npos)
        << error;
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    MixedPrecisionParity,
    testing::Values(1, 2, 3, 4),
    testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
