// SPDX-License-Identifier: Apache-2.0
//
// Mixed precision of whole models equals one process that does it by hand: fp32
// values, forward and backward of every rank on a copy in bf16, gradients added
// up in fp32 (T20, T21).
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/small_decoders.h"
#include "support/small_models.h"
#include "support/stage.h"

#include <gmock/gmock.h>
#include <sherd/optim/adamw.h>
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
    const auto units = fsdp::build_units(*model, world.size(), options);
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

// ---- other dtypes in parts of the model ----

bool is_sharded(const torch::Tensor& parameter) {
  return parameter.key_set().has(c10::DispatchKey::TESTING_ONLY_GenericWrapper);
}

struct NormedLayerImpl : torch::nn::Module {
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear linear{nullptr};
  NormedLayerImpl() {
    norm = register_module(
        "norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})));
    linear = register_module("linear", torch::nn::Linear(6, 6));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return x + layer(*linear, torch::tanh(layer(*norm, x)));
  }
  // The reference has no casts but these.
  template <typename Layer>
  static torch::Tensor layer(Layer& of, const torch::Tensor& x) {
    return of.forward(
        is_sharded(of.weight) ? x : x.to(of.weight.scalar_type()));
  }
};
TORCH_MODULE(NormedLayer);

struct PartsImpl : torch::nn::Module {
  torch::nn::ModuleList layers;
  torch::nn::Linear head{nullptr};
  PartsImpl() {
    torch::manual_seed(6);
    register_module("layers", layers);
    layers->push_back(NormedLayer());
    layers->push_back(NormedLayer());
    head = register_module("head", torch::nn::Linear(6, 3));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& layer : *layers) {
      x = layer->as<NormedLayerImpl>()->forward(x);
    }
    const auto y = NormedLayerImpl::layer(*head, x);
    return is_sharded(head->weight) ? y : y.to(torch::kFloat);
  }
};
TORCH_MODULE(Parts);

torch::Tensor parts_loss(Parts& model, int batch, int rank) {
  torch::manual_seed(100 * batch + rank);
  return model->forward(torch::randn({4, 6})).square().mean();
}

// Norms in fp32 within their blocks, a head that returns fp32.
FullyShardOptions parts_options() {
  auto options = bf16();
  options.units = units::any_of(
      {units::inside(
           units::of_type<torch::nn::LayerNormImpl>(),
           {.mixed_precision = MixedPrecision()}),
       units::with_options(
           units::by_name("head"), {.output_dtype = torch::kFloat}),
       units::children_of_lists()});
  return options;
}

TEST_P(MixedPrecisionParity, T23PartsOfTheModelHaveTheirOwnDtypes) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy : {Strategy::kFullShard, Strategy::kNoShard}) {
      MixedParity options;
      options.steps = 2;
      options.shard = parts_options();
      options.shard.strategy = strategy;
      expect_mixed_parity<Parts>(
          world, [] { return Parts(); }, parts_loss, options);
    }
    Parts model;
    const auto fsdp = fully_shard(*model, world, parts_options());
    EXPECT_EQ(fsdp.units().size(), 3U);
    EXPECT_EQ(fsdp.units()[0].flats.size(), 2U);
    EXPECT_EQ(
        model->layers->ptr<NormedLayerImpl>(0)->norm->weight.scalar_type(),
        torch::kFloat);
    EXPECT_EQ(model->head->weight.scalar_type(), kBf16);
    const auto y = model->forward(torch::ones({1, 6}));
    EXPECT_EQ(y.scalar_type(), torch::kFloat);
    EXPECT_TRUE(torch::equal(y, y.to(kBf16).to(torch::kFloat)));
  }));
}

TEST_P(MixedPrecisionParity, T23InputsAreCastUnlessSwitchedOff) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    torch::manual_seed(1);
    torch::nn::Linear model(4, 3);
    auto options = bf16();
    options.mixed_precision.cast_forward_inputs = false;
    auto fsdp = fully_shard(*model, world, options);
    const auto x = torch::ones({2, 4});
    EXPECT_NE(error_of([&] { (void)model->forward(x); }), "no error");
    EXPECT_EQ(model->forward(x.to(kBf16)).scalar_type(), kBf16);
  }));
}

struct BuffersImpl : torch::nn::Module {
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::Tensor scale, count;
  BuffersImpl() {
    linear = register_module("linear", torch::nn::Linear(4, 3));
    norm = register_module("norm", torch::nn::BatchNorm1d(3));
    scale = register_buffer("scale", torch::full({3}, 0.3));
    count = register_buffer("count", torch::ones({3}, torch::kLong));
  }
};
TORCH_MODULE(Buffers);

TEST_P(MixedPrecisionParity, T23FloatingBuffersAreCastOnRequest) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Buffers model;
    const auto kept = model->scale;
    auto options = bf16();
    options.sync_module_states = true;
    options.mixed_precision.buffer_dtype = kBf16;
    auto fsdp = fully_shard(*model, world, options);
    EXPECT_TRUE(kept.is_same(model->scale));
    expect_close(model->scale, torch::full({3}, 0.3).to(kBf16), 0.0, "scale");
    EXPECT_EQ(model->count.scalar_type(), torch::kLong);
    EXPECT_EQ(model->norm->running_mean.scalar_type(), torch::kFloat);
    Buffers other;
    options.mixed_precision.buffer_dtype = std::nullopt;
    auto uncast = fully_shard(*other, world, options);
    EXPECT_EQ(other->scale.scalar_type(), torch::kFloat);
  }));
}

std::vector<torch::Tensor> gradients_of(
    const Mesh& mesh, const FullyShardOptions& options) {
  Parts model;
  auto fsdp = fully_shard(*model, mesh, options);
  for (int batch = 0; batch < 2; ++batch) {
    parts_loss(model, batch, mesh.world().rank()).backward();
  }
  std::vector<torch::Tensor> gradients;
  for (const auto& slice : fsdp.parameters()) {
    gradients.push_back(slice.grad().clone());
  }
  // An optimizer of sherd's takes them as they are.
  AdamW adamw(fsdp.named_parameters(), {.learning_rate = 0.1});
  const auto before = fsdp.parameters().at(0).detach().clone();
  (void)fsdp.clip_grad_norm(1e6);
  adamw.step();
  EXPECT_FALSE(torch::equal(fsdp.parameters().at(0).detach(), before));
  return gradients;
}

TEST_P(MixedPrecisionParity, T21GradientsStayNarrowOnRequest) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy : {Strategy::kFullShard, Strategy::kNoShard}) {
      for (int replicas = 1; replicas <= 2; ++replicas) {
        if (world.size() % replicas != 0) {
          continue;
        }
        const Mesh mesh(world, {.replicate = replicas});
        auto options = bf16();
        options.strategy = strategy;
        const auto wide = gradients_of(mesh, options);
        options.mixed_precision.keep_low_precision_grads = true;
        const auto narrow = gradients_of(mesh, options);
        ASSERT_EQ(wide.size(), narrow.size());
        for (std::size_t i = 0; i < wide.size(); ++i) {
          EXPECT_EQ(wide[i].scalar_type(), torch::kFloat);
          EXPECT_EQ(narrow[i].scalar_type(), kBf16);
          // Rounded after each micro-batch and, with replicas, in between.
          EXPECT_TRUE(torch::allclose(
              narrow[i].to(torch::kFloat), wide[i], 3e-2, 1e-3));
        }
      }
    }
  }));
}

TEST_P(MixedPrecisionParity, T43AScopeInFullPrecisionComputesWithFp32) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy : {Strategy::kFullShard, Strategy::kNoShard}) {
      MixedNet plain;
      MixedNet model;
      plain->eval();
      model->eval();
      auto options = bf16();
      options.strategy = strategy;
      auto fsdp = fully_shard(*model, world, options);
      const auto x = fp32_inputs(0, 0);
      {
        const auto scope = fsdp.summon_full_parameters(
            {.read_only = true, .full_precision = true});
        EXPECT_NE(error_of([&] { (void)model->forward(x); }), "no error");
        const torch::NoGradGuard no_grad;
        expect_close(model->forward(x), plain->forward(x), 0.0, "output");
        expect_close(
            torch::cat({model->head->bias, model->head->bias}),
            torch::cat({plain->head->bias, plain->head->bias}), 0.0, "list");
      }
      const auto y = model->forward(x);
      EXPECT_EQ(y.scalar_type(), kBf16);
      y.sum().backward();
      EXPECT_TRUE(fsdp.parameters().at(0).grad().defined());
    }
  }));
}

// What a Sequential returns is what its last layer returns, in a Sequential inside it, too.
TEST_P(MixedPrecisionParity, B6ASequentialReturnsTheDtypeOfItsLastLayer) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy : {Strategy::kFullShard, Strategy::kNoShard}) {
      Stage tail(
          torch::nn::Linear(6, 6),
          Stage(torch::nn::ReLU(), torch::nn::Linear(6, 5)));
      torch::nn::Sequential model(torch::nn::Linear(6, 6), tail);
      fill_with_integers(*model);
      auto options = bf16();
      options.strategy = strategy;
      options.units = units::with_options(
          units::by_name("1"), {.output_dtype = torch::kFloat});
      auto fsdp = fully_shard(*model, world, options);
      const auto x = small_integers({2, 6}, 3).to(kBf16);
      const auto y = model->forward(x);
      EXPECT_EQ(y.scalar_type(), torch::kFloat);
      EXPECT_TRUE(torch::equal(y, y.to(kBf16).to(torch::kFloat)));
      // Layers before it return what they compute in.
      EXPECT_EQ(
          tail->at<torch::nn::LinearImpl>(0).forward(x).scalar_type(), kBf16);
      y.sum().backward();
      fsdp.publish();
    }
    torch::nn::Sequential ends(
        Stage(torch::nn::Linear(6, 6), torch::nn::ReLU()));
    EXPECT_THAT(
        error_of([&] {
          (void)fully_shard(
              *ends, world,
              {.units = units::with_options(
                   units::by_name("0"), {.output_dtype = torch::kFloat})});
        }),
        testing::AllOf(
            testing::HasSubstr(
                "module 0 has an output_dtype and ends with 0.1, "
                "which has 0 of 0 parameters"),
            testing::HasSubstr("torch::nn::Functional")));
  }));
}

TEST_P(MixedPrecisionParity, OptionsWithoutSenseAreRefused) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Parts model;
    const auto refusal = [&](const FullyShardOptions& options) {
      return error_of([&] { (void)fully_shard(*model, world, options); });
    };
    using testing::HasSubstr;
    EXPECT_THAT(
        refusal(
            {.units = units::with_options(
                 units::by_name("layers.0"), {.output_dtype = torch::kFloat})}),
        testing::AllOf(
            HasSubstr(
                "module layers.0 has an output_dtype and 0 of 4 parameters of "
                "its own"),
            HasSubstr("name the layer that it ends with, or call .to()")));
    EXPECT_THAT(
        refusal(
            {.units = units::with_options(
                 units::by_name("head"), {.output_dtype = torch::kLong})}),
        HasSubstr("mixed_precision.output_dtype is Long"));
    EXPECT_THAT(
        refusal({.mixed_precision = {.buffer_dtype = torch::kDouble}}),
        HasSubstr("mixed_precision.buffer_dtype is Double"));
    EXPECT_THAT(
        refusal({.gradient_divide_factor = 0.0}),
        HasSubstr("options.gradient_divide_factor is 0"));
    if (world.size() > 1) {
      EXPECT_THAT(
          refusal({.gradient_divide_factor = 1.0 + world.rank()}),
          HasSubstr("gradients divided by"));
    }
    auto fsdp = fully_shard(*model, world);
    parts_loss(model, 0, world.rank()).backward();
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
