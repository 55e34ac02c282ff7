// SPDX-License-Identifier: Apache-2.0
//
// A network of your own: a CNN with BatchNorm learns to distinguish four textures. It is sharded,
// trains in bf16, is evaluated and saved after each epoch, and continues where it stopped when it
// is started again:
//   sherd run -n 2 --no-prefix -- build/release/examples/example_cnn [EPOCHS]
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <sherd/sherd.h>
#include <torch/torch.h>

namespace {

constexpr std::int64_t kClasses = 4;
constexpr std::int64_t kSide = 16;
constexpr std::int64_t kBatch = 64;  // All ranks together.
const std::string kFolder = "runs/cnn";

class ConvBlockImpl : public torch::nn::Module {
 public:
  ConvBlockImpl(std::int64_t in, std::int64_t out)
      : conv_(register_module(
            "conv",
            torch::nn::Conv2d(
                torch::nn::Conv2dOptions(in, out, 3).padding(1).bias(false)))),
        norm_(register_module("norm", torch::nn::BatchNorm2d(out))) {}

  torch::Tensor forward(const torch::Tensor& x) {
    return torch::max_pool2d(torch::relu(norm_->forward(conv_->forward(x))), 2);
  }

 private:
  torch::nn::Conv2d conv_;
  torch::nn::BatchNorm2d norm_;
};
TORCH_MODULE(ConvBlock);

class CnnImpl : public torch::nn::Module {
 public:
  CnnImpl()
      : first_(register_module("first", ConvBlock(1, 16))),
        second_(register_module("second", ConvBlock(16, 32))),
        head_(register_module("head", torch::nn::Linear(32, kClasses))) {}

  // Images [B, 1, kSide, kSide] to logits [B, kClasses].
  torch::Tensor forward(const torch::Tensor& images) {
    const auto features = second_->forward(first_->forward(images));
    return head_->forward(features.mean({2, 3}));
  }

 private:
  ConvBlock first_;
  ConvBlock second_;
  torch::nn::Linear head_;
};
TORCH_MODULE(Cnn);

struct Images {
  torch::Tensor pixels;  // [count, 1, kSide, kSide]
  torch::Tensor labels;  // [count], int64
};

// Horizontal, vertical and diagonal stripes and a grid, shifted and with noise.
Images make_images(std::int64_t count, std::uint64_t seed) {
  torch::manual_seed(seed);  // The same images on every rank.
  const auto shift = 2 * M_PI * torch::rand({count, 1, 1});
  const auto row = M_PI / 2 * torch::arange(kSide).view({1, kSide, 1}) + shift;
  const auto column = row.transpose(1, 2);
  const auto textures = torch::stack(
      {row.sin().expand({count, kSide, kSide}),
       column.sin().expand({count, kSide, kSide}), (row + column).sin(),
       row.sin() * column.sin()},
      1);
  const auto labels = torch::randint(kClasses, {count}, torch::kLong);
  const auto mine = textures.index({torch::arange(count), labels});
  return {(mine + 1.0 * torch::randn_like(mine)).unsqueeze(1), labels};
}

sherd::FullyShardedDataParallel shard(Cnn& model, const sherd::World& world) {
  return sherd::fully_shard(
      *model, world,
      {.units = sherd::units::of_type<ConvBlockImpl>(),
       .mixed_precision = {.param_dtype = at::kBFloat16}});
}

sherd::CheckpointState state_of(
    Cnn& model, sherd::FullyShardedDataParallel& fsdp, sherd::AdamW& adamw) {
  sherd::CheckpointState state;
  state.add(fsdp.named_parameters());
  state.add_buffers(*model);  // The running statistics of BatchNorm.
  state.add("optimizer", adamw, fsdp.named_parameters());
  return state;
}

// Returns the loss of this rank's last batch.
double train_epoch(
    const sherd::World& world,
    Cnn& model,
    sherd::AdamW& adamw,
    const Images& images,
    std::int64_t epoch) {
  model->train();
  torch::manual_seed(epoch);  // The same order on every rank, also on resuming.
  const auto order = torch::randperm(images.labels.size(0));
  const auto mine = kBatch / world.size();
  double loss = 0;
  for (std::int64_t begin = 0; begin + kBatch <= order.size(0);
       begin += kBatch) {
    const auto rows = order.narrow(0, begin + world.rank() * mine, mine);
    const auto logits = model->forward(images.pixels.index_select(0, rows));
    const auto error = torch::nn::functional::cross_entropy(
        logits.to(torch::kFloat), images.labels.index_select(0, rows));
    error.backward();
    adamw.step();
    adamw.zero_grad();
    loss = error.item<double>();
  }
  return loss;
}

// The share of images that are classified correctly. Each rank evaluates its part of them.
double accuracy(const sherd::World& world, Cnn& model, const Images& images) {
  const torch::NoGradGuard no_grad;
  world.broadcast(model->buffers());  // Rank 0's statistics on every rank.
  model->eval();
  const auto mine = images.labels.size(0) / world.size();
  const auto begin = world.rank() * mine;
  const auto guess =
      model->forward(images.pixels.narrow(0, begin, mine)).argmax(1);
  const auto right = guess.eq(images.labels.narrow(0, begin, mine)).sum();
  double all = 0;
  for (const auto& of_rank : world.all_gather({right.item<double>()})) {
    all += of_rank[0];
  }
  return all / static_cast<double>(mine * world.size());
}

// Trains until `epochs` are done, and returns the accuracy on `held_out`.
double train(
    const sherd::World& world, const Images& held_out, std::int64_t epochs) {
  const auto images = make_images(2048, 1);
  torch::manual_seed(0);  // The same first values on every rank.
  Cnn model;
  auto fsdp = shard(model, world);
  sherd::AdamW adamw(fsdp.named_parameters(), {.learning_rate = 3e-3});
  auto state = state_of(model, fsdp, adamw);
  sherd::CheckpointSaver saver(world, kFolder, {.keep_last = 2});
  std::int64_t epoch = 0;
  if (const auto newest = saver.newest()) {
    epoch = sherd::load_checkpoint(world, *newest, state).step;
    if (world.rank() == 0) {
      std::printf("continued after epoch %d\n", static_cast<int>(epoch));
    }
  }
  while (epoch < epochs) {
    const auto loss = train_epoch(world, model, adamw, images, ++epoch);
    const auto share = accuracy(world, model, held_out);
    saver.save(epoch, state);
    if (world.rank() == 0) {
      std::printf(
          "epoch %d, loss %.3f, accuracy %.3f\n", static_cast<int>(epoch), loss,
          share);
    }
  }
  return accuracy(world, model, held_out);
}

// For a program that only evaluates the newest checkpoint.
double evaluate(const sherd::World& world, const Images& held_out) {
  Cnn model;
  auto fsdp = sherd::fully_shard(
      *model, world,
      {.compare_initial_values = false,
       .mixed_precision = {.param_dtype = at::kBFloat16}});
  sherd::CheckpointState state;  // Without the optimizer's state.
  state.add(fsdp.named_parameters());
  state.add_buffers(*model);
  sherd::load_checkpoint(
      world, sherd::newest_checkpoint(kFolder).value(), state,
      {.strict = false});
  return accuracy(world, model, held_out);
}

int run(const char* epochs) {
  if (std::atoi(epochs) < 1) {
    throw sherd::Error(
        std::string("expected at least 1 epoch, found ") + epochs);
  }
  auto world = sherd::World::from_environment();
  const auto held_out = make_images(512, 2);
  const auto trained = train(world, held_out, std::atoi(epochs));
  const auto loaded = evaluate(world, held_out);
  if (world.rank() == 0) {
    std::printf(
        "accuracy %.3f, %s after loading\n", trained,
        loaded == trained ? "the same" : "another one");
  }
  world.close();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return sherd::run_main(
      argc, argv, [&] { return run(argc > 1 ? argv[1] : "4"); });
}
