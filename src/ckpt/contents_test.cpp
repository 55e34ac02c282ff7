// SPDX-License-Identifier: Apache-2.0
//
// Operations on checkpoints without a job: comparison, archives, progress.
#include <cmath>
#include <filesystem>
#include <limits>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <sherd/ckpt/checkpoint.h>
#include <sherd/optim/adamw.h>
#include <torch/torch.h>
#include "support/error_of.h"
#include "support/scratch_folder.h"

namespace sherd {
namespace {

using test::error_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::ScratchFolder;

using Tensors = std::map<std::string, at::Tensor>;

std::string saved(
    const std::string& folder,
    const Tensors& tensors,
    const std::map<std::string, std::string>& values = {}) {
  CheckpointState state;
  for (const auto& [name, tensor] : tensors) {
    state.add(
        "model",
        {.name = name, .shape = tensor.sizes().vec(), .elements = tensor});
  }
  state.values = values;
  CheckpointSaver(World::single(), folder).save(3, state);
  return folder + "/step-3";
}

TEST(CompareCheckpoints, FindsNothingInTheSameTensors) {
  const ScratchFolder scratch;
  const Tensors tensors = {
      {"a", torch::arange(6.0F).view({2, 3})},
      {"none", torch::empty({0, 4})},
      {"nan", torch::full({2}, NAN)}};
  const auto found = compare_checkpoints(
      saved(scratch.path() + "/1", tensors),
      saved(scratch.path() + "/2", tensors));
  EXPECT_TRUE(found.none());
  EXPECT_EQ(found.equal, 3);
}

TEST(CompareCheckpoints, NamesEverythingThatDiffers) {
  const ScratchFolder scratch;
  const auto base = torch::arange(3'000'000, torch::kFloat);
  auto other = base.clone();
  other[2'999'999] += 2;
  other[5] = NAN;
  const auto first = saved(
      scratch.path() + "/1",
      {{"far", base},
       {"gone", base},
       {"dtype", torch::ones({2})},
       {"shape", torch::ones({2})},
       {"small", torch::ones({4})}},
      {{"same", "1"}, {"other", "2"}, {"first", "3"}});
  const auto second = saved(
      scratch.path() + "/2",
      {{"far", other},
       {"new", base},
       {"dtype", torch::ones({2}, torch::kBFloat16)},
       {"shape", torch::ones({1, 2})},
       {"small", torch::tensor({1.0F, 1.5F, 1.0F, 0.75F})}},
      {{"same", "1"}, {"other", "4"}, {"second", "5"}});
  const auto found = compare_checkpoints(first, second);
  EXPECT_FALSE(found.none());
  EXPECT_THAT(found.only_in_first, ElementsAre("model gone"));
  EXPECT_THAT(found.only_in_second, ElementsAre("model new"));
  EXPECT_THAT(found.values, ElementsAre("first", "other", "second"));
  EXPECT_EQ(found.equal, 0);
  ASSERT_EQ(found.changed.size(), 4U);
  const auto& dtype = found.changed[0];
  const auto& far = found.changed[1];
  const auto& shape = found.changed[2];
  const auto& small = found.changed[3];
  EXPECT_EQ(dtype.dtypes[1], "BF16");
  EXPECT_EQ(dtype.elements, 0);
  EXPECT_EQ(far.elements, 2);
  EXPECT_EQ(far.largest_difference, std::numeric_limits<double>::infinity());
  EXPECT_THAT(shape.shapes[1], ElementsAre(1, 2));
  EXPECT_EQ(small.elements, 2);
  EXPECT_EQ(small.largest_difference, 0.5);
}

// With children of all kinds: with tensors, without, with undefined ones, and functions.
struct DeepImpl : torch::nn::Module {
  torch::nn::Sequential layers;
  torch::Tensor scale, count;
  DeepImpl()
      : layers(
            torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 2, 3).bias(false)),
            torch::nn::BatchNorm2d(2),
            torch::nn::ReLU(),
            torch::nn::MaxPool2d(2),
            torch::nn::BatchNorm2d(torch::nn::BatchNorm2dOptions(2)
                                       .affine(false)
                                       .track_running_stats(false)),
            torch::nn::Functional(torch::relu)) {
    register_module("layers", layers);
    register_module("tail", torch::nn::Sequential(torch::nn::Dropout(0.1)));
    scale = register_parameter("scale", torch::rand({2}));
    count = register_buffer("count", torch::tensor(7));
  }
};
TORCH_MODULE(Deep);

Tensors all_of(const Deep& module) {
  Tensors tensors;
  for (const auto& item : module->named_parameters()) {
    tensors[item.key()] = item.value().detach();
  }
  for (const auto& item : module->named_buffers()) {
    tensors[item.key()] = item.value();
  }
  return tensors;
}

TEST(Archives, OfTorchSaveBecomeCheckpointsAndBack) {
  const ScratchFolder scratch;
  const Deep module;
  const auto path = scratch.path() + "/module.pt";
  torch::save(module, path);
  const auto names = import_checkpoint({path}, scratch.path() + "/imported");
  EXPECT_EQ(names.size(), all_of(module).size());
  const auto folder = scratch.path() + "/imported/step-0";
  EXPECT_TRUE(compare_checkpoints(
                  folder, saved(scratch.path() + "/own", all_of(module)))
                  .none());
  const auto written = merge_checkpoint(
      folder, scratch.path() + "/archives", {.archives = true});
  EXPECT_THAT(written, ElementsAre(scratch.path() + "/archives/model.pt"));
  Deep again;
  torch::load(again, written.front());
  for (const auto& [name, tensor] : all_of(again)) {
    EXPECT_TRUE(torch::equal(tensor, all_of(module)[name])) << name;
  }
}

TEST(Archives, OfACheckpointLoadIntoAModuleWithChildrenWithoutTensors) {
  const ScratchFolder scratch;
  Deep module;
  CheckpointState state;
  for (const auto& item : module->named_parameters()) {
    state.add(
        "model",
        {.name = item.key(),
         .shape = item.value().sizes().vec(),
         .elements = item.value().detach()});
  }
  state.add_buffers(*module);
  CheckpointSaver(World::single(), scratch.path() + "/run").save(3, state);
  ::testing::internal::CaptureStderr();
  const auto written = merge_checkpoint(
      scratch.path() + "/run/step-3", scratch.path() + "/archives",
      {.archives = true});
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  Deep again;
  torch::load(again, written.front());
  for (const auto& [name, tensor] : all_of(again)) {
    EXPECT_TRUE(torch::equal(tensor, all_of(module)[name])) << name;
  }
}

TEST(Archives, OfACheckpointThatNamesNoSuchChildrenComeWithAWarning) {
  const ScratchFolder scratch;
  const auto folder = saved(scratch.path() + "/run", all_of(Deep()));
  ::testing::internal::CaptureStderr();
  merge_checkpoint(folder, scratch.path() + "/to", {.archives = true});
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      AllOf(
          HasSubstr(folder), HasSubstr("children without tensors"),
          HasSubstr("add_buffers")));
  Deep module;
  EXPECT_THAT(
      error_of([&] { torch::load(module, scratch.path() + "/to/model.pt"); }),
      HasSubstr("No such serialized submodule"));
}

TEST(MergeCheckpoint, LeavesNothingThatBlocksTheNextCallWhenItFails) {
  const ScratchFolder scratch;
  const auto folder = saved(
      scratch.path() + "/run",
      {{"a", torch::ones({1000})}, {"b", torch::ones({1000})}});
  const auto file = folder + "/model-00000-000.safetensors";
  const auto bytes = std::filesystem::file_size(file);
  std::filesystem::copy_file(file, scratch.path() + "/whole");
  const auto to = scratch.path() + "/to";
  for (const bool archives : {false, true}) {
    std::filesystem::resize_file(file, bytes - 100);
    std::filesystem::resize_file(file, bytes);  // The end of b is zero now.
    EXPECT_THAT(
        error_of([&] { merge_checkpoint(folder, to, {.archives = archives}); }),
        HasSubstr("is damaged"));
    EXPECT_TRUE(std::filesystem::is_empty(to));
    std::filesystem::copy_file(
        scratch.path() + "/whole", file,
        std::filesystem::copy_options::overwrite_existing);
    EXPECT_EQ(merge_checkpoint(folder, to, {.archives = archives}).size(), 1U);
    std::filesystem::remove_all(to);
  }
}

// Two files of one tensor each, and the state of a model that has both.
struct TwoFiles {
  explicit TwoFiles(const ScratchFolder& scratch) {
    for (const auto& [name, tensor] : Tensors{{"a", first}, {"b", second}}) {
      const auto run = scratch.path() + "/" + name;
      files.push_back(
          merge_checkpoint(saved(run, {{name, tensor}}), run + "/merged")
              .front());
    }
    state.add("model", {.name = "a", .shape = {4, 3}, .elements = into_first});
    state.add(
        "model",
        {.name = "b", .shape = {7}, .begin = 2, .elements = into_second});
  }

  const at::Tensor first = torch::randn({4, 3}, torch::kBFloat16);
  const at::Tensor second = torch::randn({7});
  at::Tensor into_first = torch::zeros({4, 3});
  at::Tensor into_second = torch::zeros({3});
  std::vector<std::string> files;
  CheckpointState state;
};

TEST(TensorFiles, AreReadIntoTheShardsOfAState) {
  const ScratchFolder scratch;
  TwoFiles two(scratch);
  load_tensor_files(World::single(), two.files, two.state);
  EXPECT_TRUE(torch::equal(two.into_first, two.first.to(torch::kFloat)));
  EXPECT_TRUE(torch::equal(two.into_second, two.second.slice(0, 2, 5)));
}

// Before its first step, an optimizer has no state yet: loading weights makes none.
TEST(TensorFiles, LeaveTheOtherSectionsOfAStateAsTheyAre) {
  const ScratchFolder scratch;
  TwoFiles two(scratch);
  NamedParameters parameters;
  parameters.items = {{"a", two.into_first}, {"b", two.into_second}};
  torch::optim::Adam adam({two.into_first, two.into_second});
  two.state.add("optimizer", adam, parameters);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(11);
  two.state.add_generator("dropout", generator);
  const std::vector<std::pair<std::string, at::Tensor>> scaler = {
      {"scale", torch::full({}, 3.0F)}};
  two.state.add("scaler", scaler);
  load_tensor_files(World::single(), two.files, two.state);
  EXPECT_TRUE(torch::equal(two.into_first, two.first.to(torch::kFloat)));
  EXPECT_TRUE(torch::equal(two.into_second, two.second.slice(0, 2, 5)));
  EXPECT_TRUE(adam.state().empty());
  EXPECT_EQ(generator.current_seed(), 11U);
  EXPECT_EQ(scaler.front().second.item<float>(), 3.0F);
}

// An Adam over two parameters, and its state in section "optimizer".
struct TwoInAdam {
  TwoInAdam() {
    NamedParameters parameters;
    parameters.items = {{"a", a}, {"b", b}};
    state.add("optimizer", adam, parameters);
  }

  at::Tensor a = torch::ones({3}).requires_grad_();
  at::Tensor b = torch::ones({2}).requires_grad_();
  torch::optim::Adam adam{std::vector<at::Tensor>{a, b}};
  CheckpointState state;
};

TEST(TensorFiles, OfAnOptimizerMayLackParametersThatItNeverUpdated) {
  const ScratchFolder scratch;
  TwoInAdam saved;
  (saved.a * 2).sum().backward();
  saved.adam.step();
  CheckpointSaver(World::single(), scratch.path() + "/run")
      .save(1, saved.state);
  const auto files =
      merge_checkpoint(scratch.path() + "/run/step-1", scratch.path() + "/to");
  TwoInAdam loaded;
  load_tensor_files(
      World::single(), files, loaded.state, {.section = "optimizer"});
  const auto found = gather_full_state(World::single(), loaded.state);
  const auto& tensors = found.at("optimizer");
  EXPECT_TRUE(torch::equal(tensors.at("exp_avg.a"), torch::full({3}, 0.2F)));
  EXPECT_EQ(tensors.at("step.a").item<std::int64_t>(), 1);
  EXPECT_FALSE(tensors.contains("exp_avg.b")) << "none is made";
}

TEST(TensorFiles, ThatDoNotFitTheStateAreErrorsThatNameTheTensor) {
  const ScratchFolder scratch;
  TwoFiles two(scratch);
  const auto refusal = [&](const std::vector<std::string>& files) {
    return error_of(
        [&] { load_tensor_files(World::single(), files, two.state); });
  };
  EXPECT_THAT(refusal({}), HasSubstr("expected files to load, found none"));
  EXPECT_THAT(
      refusal({two.files[0]}),
      HasSubstr(
          two.files[0] +
          ": expected all tensors that the model has, found no b"));
  EXPECT_THAT(
      refusal({two.files[0], two.files[1], two.files[0]}),
      HasSubstr("found a twice"));
  EXPECT_THAT(
      refusal({two.files[0], scratch.path() + "/none.safetensors"}),
      HasSubstr("none.safetensors"));
  EXPECT_THAT(
      refusal({two.files[0], scratch.file("cut.safetensors", "short")}),
      HasSubstr("cut.safetensors"));
  two.state.add(
      "model", {.name = "c", .shape = {2}, .elements = torch::zeros({2})});
  EXPECT_THAT(refusal(two.files), HasSubstr("found no c"));
  CheckpointState narrow;
  narrow.add(
      "model", {.name = "a", .shape = {4, 3}, .elements = two.into_first});
  EXPECT_THAT(
      error_of([&] { load_tensor_files(World::single(), two.files, narrow); }),
      HasSubstr("expected no tensor that the model lacks, found b"));
  CheckpointState wide;
  wide.add(
      "model",
      {.name = "a", .shape = {3, 4}, .elements = torch::zeros({3, 4})});
  EXPECT_THAT(
      error_of(
          [&] { load_tensor_files(World::single(), {two.files[0]}, wide); }),
      HasSubstr("a: expected shape [3, 4], found [4, 3]"));
}

TEST(TensorFiles, AreImportedIntoASectionThatCanBeTheNameOfAFile) {
  const ScratchFolder scratch;
  const TwoFiles two(scratch);
  const auto folder = scratch.path() + "/imported";
  for (const std::string section : {"", ".x", "../x", "a/b", "a b"}) {
    EXPECT_THAT(
        error_of([&] {
          import_checkpoint(two.files, folder, {.section = section});
        }),
        HasSubstr(
            "expected a section of letters, digits, _ and -, found '" +
            section + "'"));
    EXPECT_FALSE(std::filesystem::exists(folder)) << section;
  }
  import_checkpoint(two.files, folder, {.section = "a-Z_9"});
  EXPECT_EQ(checkpoint_content(folder + "/step-0").tensors.size(), 2U);
}

TEST(Archives, OfAnotherKindAreErrorsThatNameTheFile) {
  const ScratchFolder scratch;
  const auto path =
      scratch.file("broken.pt", std::string("PK\3\4 and no more"));
  EXPECT_THAT(
      error_of([&] { import_checkpoint({path}, scratch.path() + "/run"); }),
      AllOf(HasSubstr("broken.pt: expected an archive"), HasSubstr("found")));
  EXPECT_EQ(newest_checkpoint(scratch.path() + "/run"), std::nullopt);
}

TEST(Archives, CannotHoldAllNames) {
  const ScratchFolder scratch;
  const auto folder = saved(
      scratch.path() + "/run",
      {{"a", torch::ones({1})}, {"a.b", torch::ones({1})}});
  EXPECT_THAT(
      error_of([&] {
        merge_checkpoint(folder, scratch.path() + "/to", {.archives = true});
      }),
      HasSubstr("tensor a beside a module of that name"));
  const auto quoted =
      saved(scratch.path() + "/quoted", {{"a\"b", torch::ones({1})}});
  EXPECT_THAT(
      error_of([&] {
        merge_checkpoint(quoted, scratch.path() + "/to", {.archives = true});
      }),
      HasSubstr("cannot hold the name a\"b"));
}

TEST(CheckpointProgress, CountsEveryByteOnce) {
  const ScratchFolder scratch;
  std::vector<std::int64_t> done;
  std::int64_t all = 0;
  const CheckpointProgress progress = [&](std::int64_t now, std::int64_t of) {
    EXPECT_TRUE(done.empty() || now > done.back());
    done.push_back(now);
    all = of;
  };
  const auto expect_told = [&](const char* what) {
    EXPECT_EQ(all, 4 * 3'000'000 + 4) << what;
    EXPECT_EQ(done.empty() ? -1 : done.back(), all) << what;
    done.clear();
  };
  CheckpointState state;
  const auto large = torch::rand({3'000'000});
  const auto small = torch::rand({});
  state.add("model", {.name = "l", .shape = {3'000'000}, .elements = large});
  state.add("model", {.name = "s", .shape = {}, .elements = small});
  const auto run = scratch.path() + "/run";
  CheckpointSaver(World::single(), run, {.progress = progress}).save(1, state);
  EXPECT_GT(done.size(), 10U);
  expect_told("saving");
  verify_checkpoint(run + "/step-1", progress);
  EXPECT_GT(done.size(), 10U);
  expect_told("verifying");
  const auto files = merge_checkpoint(
      run + "/step-1", scratch.path() + "/to", {.progress = progress});
  expect_told("merging");
  import_checkpoint(
      files, scratch.path() + "/imported", {.progress = progress});
  expect_told("importing");
  EXPECT_TRUE(
      compare_checkpoints(
          run + "/step-1", scratch.path() + "/imported/step-0", progress)
          .changed.empty());
  expect_told("comparing");
}

TEST(CheckpointGenerators, GoOnWithTheNumbersTheyWouldHaveMade) {
  const ScratchFolder scratch;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(11);
  const auto draw = [&] { return torch::rand({5}, generator); };
  draw();
  CheckpointState state;
  state.add_generator("dropout", generator);
  CheckpointSaver(World::single(), scratch.path()).save(1, state);
  const auto expected = draw();
  generator.set_current_seed(12);
  const auto report =
      load_checkpoint(World::single(), scratch.path() + "/step-1", state);
  EXPECT_TRUE(torch::equal(draw(), expected));
  EXPECT_THAT(report.missing, IsEmpty());
  EXPECT_THAT(
      error_of([&] { state.add_generator("dropout", generator); }),
      HasSubstr("found dropout again"));
  CheckpointState without;
  EXPECT_THAT(
      error_of([&] {
        load_checkpoint(World::single(), scratch.path() + "/step-1", without);
      }),
      HasSubstr("generators dropout.rank-0"));
}

// A rank may have no slice of any parameter, and a module no buffers.
TEST(CheckpointSections, AreCheckedWithoutTensors) {
  CheckpointState state;
  const auto refused = HasSubstr("expected a section of letters, digits");
  EXPECT_THAT(error_of([&] { state.add("a b", NamedParameters()); }), refused);
  EXPECT_THAT(
      error_of([&] { state.add_buffers("a b", torch::nn::ReLUImpl()); }),
      refused);
}

TEST(Saver, NamesASaverOrAnOptimizerThatWasMovedFrom) {
  const ScratchFolder scratch;
  const auto world = World::single();
  CheckpointSaver first(world, scratch.path());
  CheckpointSaver second(std::move(first));
  CheckpointState state;
  EXPECT_THAT(
      // NOLINTNEXTLINE(bugprone-use-after-move): this is what is tested.
      error_of([&] { first.save(1, state); }),
      HasSubstr("[ckpt] CheckpointSaver was moved from"));
  NamedParameters parameters;
  parameters.items = {{"a", torch::ones({3}).requires_grad_()}};
  AdamW adamw(parameters);
  state.add("optimizer", adamw, parameters);
  const AdamW moved(std::move(adamw));
  EXPECT_THAT(
      error_of([&] { second.save(1, state); }),
      HasSubstr("[optim] AdamW was moved from"));
}

}  // namespace
}  // namespace sherd
