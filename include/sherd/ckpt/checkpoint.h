// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints: folders of safetensors files, complete or absent, that any number
// of ranks saves together and any other number loads.
//
//   sherd::CheckpointState state;
//   state.add(fsdp.named_parameters());
//   state.add_buffers(*model);
//   state.add("optimizer", adamw, fsdp.named_parameters());
//   sherd::CheckpointSaver saver(world, "run/checkpoints");
//   sherd::load_newest_checkpoint(world, "run/checkpoints", state);
//   saver.save(step, state);   // Every so often.
//
// Mirrors torch.distributed.checkpoint. Concepts: docs/guide/checkpoints.md; the
// format: docs/design/checkpoints.md.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <sherd/optim/named_parameters.h>
#include <sherd/world/world.h>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace sherd {

// Whose values a checkpoint saves where several ranks hold a tensor.
enum class Copies {
  kEqual,  // They are equal: each rank saves a part of its own.
  kRank0,  // They may differ: rank 0 saves its own, and loading gives it to all.
};

// A tensor as this rank holds it: elements [begin, begin + elements.numel()) of the flattened
// tensor of that shape.
struct NamedShard {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;
  // On the CPU or on a device, no element in the memory of another; read and written in the order of their
  // indices, whatever their strides.
  at::Tensor elements;
  // How many neighbouring ranks hold the tensor together; other groups of as many ranks hold
  // copies. 1: every rank has all of it.
  int ranks = 1;
  Copies copies = Copies::kEqual;  // kRank0 needs `ranks` of 1.
};

// What a checkpoint keeps, as far as this rank holds it. Tensors are shared, and read and written
// where they lie; an optimizer must outlive the state. Every rank adds the same. Thread rule: one
// thread.
class CheckpointState {
 public:
  // A section groups tensors that belong together; its name has letters, digits, "_" and "-".
  // Throws Error for another name, a tensor that cannot be saved, and a tensor name that comes
  // twice.
  void add(const std::string& section, NamedShard shard);

  // The parameters of fully_shard or replicate, in section "model"; loading publishes them.
  void add(const NamedParameters& parameters);

  // The module's buffers, which every rank has whole, in section "model". Where ranks differ, as
  // running statistics do, rank 0's are saved, and all ranks have those after loading. Also the
  // names of children that have no tensors, as ReLU, so that merge_checkpoint() can make an archive
  // for torch::load(): call it for a module without buffers, too.
  void add_buffers(const torch::nn::Module& module);

  // The state of one of sherd's optimizers, as tensors "exp_avg.NAME", without that of parameters
  // it has not updated yet. `parameters` are those that the optimizer was made with, or more.
  template <typename Optimizer>
    requires requires(Optimizer& optimizer) { optimizer.tensors(true); }
  void add(
      const std::string& section,
      Optimizer& optimizer,
      const NamedParameters& parameters) {
    add_optimizer(section, parameters, [&optimizer](bool all) {
      return optimizer.tensors(all);
    });
  }

  // The same for Adam, AdamW, SGD, RMSprop and Adagrad of torch::optim. Throws Error for another.
  void add(
      const std::string& section,
      torch::optim::Optimizer& optimizer,
      const NamedParameters& parameters);

  // Tensors that every rank has whole, with equal values, e.g. GradScaler::state().
  void add(
      const std::string& section,
      const std::vector<std::pair<std::string, at::Tensor>>& tensors);

  // A random generator, of which each rank has its own. Loading gives a rank what the rank of the
  // same number saved; a rank that did not exist then keeps its own.
  void add_generator(const std::string& name, const at::Generator& generator);

  // Texts of the program: rank 0's are saved, and every rank gets them.
  std::map<std::string, std::string> values;

 private:
  friend class CheckpointAccess;
  using Tensors = std::function<std::vector<OptimizerTensor>(bool all)>;
  struct OptimizerState {
    std::string section;
    std::map<std::string, NamedShard> slices;  // By parameter.
    Tensors tensors;
  };
  void add_optimizer(
      const std::string& section,
      const NamedParameters& parameters,
      Tensors tensors);

  std::vector<std::pair<std::string, NamedShard>> shards_;
  // Section and name of `shards_`, and of tensors that lie on other ranks alone.
  std::set<std::pair<std::string, std::string>> names_;
  std::vector<OptimizerState> optimizers_;
  std::map<std::string, at::Generator> generators_;
  std::optional<std::set<std::string>> modules_;  // Without tensors.
  std::vector<std::function<void()>> publish_;
};

// How many bytes of tensors are done, and of how many; must not throw.
using CheckpointProgress =
    std::function<void(std::int64_t done, std::int64_t all)>;

struct SaveOptions {
  // ---- behaviour

  // Tensors are copied and written by a thread beside training, which stops for the copy alone;
  // costs that memory. One save runs at a time: the next one waits for it and throws what it failed
  // with.
  bool asynchronous = false;
  // After a save all but the newest `keep_last` checkpoints are removed, save those of steps that
  // `keep_every` divides. 0: none is removed; no step is special.
  int keep_last = 0;
  std::int64_t keep_every = 0;
  // Other jobs save into the folder too, as replicas do. It is locked for each save alone, which
  // waits at most a minute for others'. A checkpoint of the same step and with the same values is
  // not saved again.
  bool shared = false;

  // ---- performance

  // No file is larger, except one of a single tensor.
  std::int64_t file_bytes_max = std::int64_t{4} << 30;
  // Reports this rank's part; called by the thread that writes when asynchronous.
  CheckpointProgress progress = nullptr;
};

// Saves into a folder that belongs to one run at a time: step 100 becomes FOLDER/step-100 by one
// rename, once all of it is on the disk. What a killed run left incomplete is removed at the start
// or, in a shared folder, before the next save. Thread rule: one thread.
class CheckpointSaver {
 public:
  // Collective over the world, which must outlive it. Makes the folder. Throws
  // Error, on every rank, when it cannot be made or another run has it.
  CheckpointSaver(
      const World& world,
      const std::string& folder,
      const SaveOptions& options = {});
  // Waits until this rank's part of an asynchronous save is written; only wait() tells whether the
  // save became complete.
  ~CheckpointSaver();
  CheckpointSaver(CheckpointSaver&&) noexcept;
  CheckpointSaver& operator=(CheckpointSaver&&) = delete;

  // Collective, between two steps. Replaces a checkpoint of the same step. Returns when it is
  // complete or, if asynchronous, when tensors are copied. Throws Error, on every rank, naming the
  // first rank that failed and why; nothing has changed then, and the next save may succeed.
  void save(std::int64_t step, const CheckpointState& state);

  // Collective. Waits until the last save is complete; throws what it failed with.
  void wait();

  // Whether this rank still writes its part of an asynchronous save; other ranks may be faster or
  // slower. Never waits.
  bool saving() const;

  // Collective. The folder of the newest complete checkpoint, the same on every rank.
  std::optional<std::string> newest() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct LoadOptions {
  // Whether names that only the state or only the checkpoint has are an error that lists them. If
  // not, they are reported and left as they are.
  bool strict = true;
};

struct LoadReport {
  // These three are the checkpoint's; scatter_full_state() leaves them as they are here.
  std::string folder;
  std::int64_t step = 0;
  int world_size = 1;  // The one that saved it.
  // "SECTION NAME" each, over all ranks.
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;
  std::int64_t bytes_read = 0;  // Bytes of tensors, by this rank.
};

// Collective. Reads what this rank holds into the state's tensors, converted where dtypes differ,
// and the values. Every byte is compared with its checksum. Throws Error, on every rank, for a
// folder without a complete checkpoint, a damaged file, another shape, and as options.strict says;
// the state is then partly written.
LoadReport load_checkpoint(
    const World& world,
    const std::string& folder,
    CheckpointState& state,
    const LoadOptions& options = {});

// Collective. Loads the newest checkpoint in a folder of them that can be read, the same on every
// rank; empty where there is none, or no folder. For each newer one that is damaged, rank 0 logs a
// warning that names both. Throws Error as load_checkpoint() does for one that does not fit the
// state, and, naming what is wrong with the newest, when there are some and none can be read.
std::optional<LoadReport> load_newest_checkpoint(
    const World& world,
    const std::string& folder,
    CheckpointState& state,
    const LoadOptions& options = {});

// The same, where what is loaded depends on the checkpoint: `load` is called with one folder after
// another. It is collective too, and what cannot be read is to throw kUnavailable on every rank.
std::optional<LoadReport> load_newest_checkpoint(
    const World& world,
    const std::string& folder,
    const std::function<LoadReport(const std::string& checkpoint)>& load);

using FullTensorVisitor = std::function<void(
    const std::string& section,
    const std::string& name,
    const at::Tensor& tensor)>;

// Collective, between two steps. On rank 0, `visit` gets each tensor of the state whole, on the
// CPU, in order of section and name, and may keep it; other ranks' is not called. Memory on rank 0:
// one tensor, and those that `visit` keeps. Throws Error, on every rank, when ranks have different
// tensors, and when a visit throws. Mirrors get_model_state_dict() with full_state_dict and
// cpu_offload.
void gather_full_state(
    const World& world,
    const CheckpointState& state,
    const FullTensorVisitor& visit);

// Whole tensors in memory: by section, by name.
using FullState = std::map<std::string, std::map<std::string, at::Tensor>>;

// The same into the memory of rank 0; empty on other ranks. Every section of the state is there, an
// optimizer's before its first step without tensors.
FullState gather_full_state(const World& world, const CheckpointState& state);

// Collective, between two steps. The reverse: each rank gets what it holds of the tensors in `full`,
// which rank 0 alone needs to have; others' is not read. Publishes. Memory: nothing that grows with
// the model, save an optimizer's state, where it has none yet, and a copy of one tensor at a time
// where it is not contiguous. Of an optimizer's parameters, each has all of its state in `full` or
// none, as before its first update. Generators of more ranks than there are now are left out.
// Throws Error, on every rank, naming the tensor, for one that only the state or only `full` has
// (unless options.strict is false: then both are reported, and left as they are) and for another
// shape or dtype; the values of the state are as before then. Also for one that a rank cannot take,
// such as a state that its generator refuses; the state is then partly written, and not published.
// Mirrors set_model_state_dict() and set_optimizer_state_dict() with full_state_dict and
// broadcast_from_rank0.
LoadReport scatter_full_state(
    const World& world,
    const FullState& full,
    CheckpointState& state,
    const LoadOptions& options = {});

// ---- Without a job: one process, no world. Throw Error as above. ----

// The complete checkpoint of the highest step in a folder; empty where there is none, or no folder.
std::optional<std::string> newest_checkpoint(const std::string& folder);

struct CheckpointContent {
  std::string folder;
  std::int64_t step = 0;
  int world_size = 1;  // The one that saved it.
  std::map<std::string, std::string> values;
  std::int64_t files = 0;  // Files of tensors,
  std::int64_t bytes = 0;  // and their size.
  struct Tensor {
    std::string section;
    std::string name;
    std::string dtype;  // In the words of safetensors: "F32".
    std::vector<std::int64_t> shape;
    int parts = 1;  // How many pieces it is saved in.
  };
  std::vector<Tensor> tensors;  // By section and name.
};
CheckpointContent checkpoint_content(const std::string& folder);

// What a communication hook remembers, CommHook::state(), in a section of its own. The ranks that it
// reduces among, those of a mesh's replicate axis, remember tensors of equal names and shapes with
// different values. `mesh` is that of the handle, or one of replicas alone where every rank has whole
// parameters.
inline constexpr const char* kHookSection = "hook";
using HookState = std::vector<std::pair<std::string, at::Tensor>>;
// Collective.
void add_hook_state(
    CheckpointState& state, const HookState& hook, const Mesh& mesh);
// Tensors for a rank's part of what the checkpoint has, to be added and loaded, and then given to
// CommHook::load(). Empty when it has none, or that of another mesh.
HookState room_for_hook_state(
    const CheckpointContent& content, const Mesh& mesh);

// Reads all of it, and checks every checksum, every file's header, and that no element is missing.
// Returns the bytes of tensors.
std::int64_t verify_checkpoint(
    const std::string& folder, const CheckpointProgress& progress = nullptr);

struct CheckpointDifference {
  struct Tensor {
    std::string section;
    std::string name;
    std::array<std::string, 2> dtypes;
    std::array<std::vector<std::int64_t>, 2> shapes;
    // Where shapes are equal: how many elements differ in value, and by how much at most.
    std::int64_t elements = 0;
    double largest_difference = 0.0;
  };
  // "SECTION NAME" each.
  std::vector<std::string> only_in_first;
  std::vector<std::string> only_in_second;
  std::vector<Tensor> changed;      // In dtype, shape or a bit.
  std::vector<std::string> values;  // Names.
  std::int64_t equal = 0;           // Tensors with the same bits.
  bool none() const;
};

// Steps, ranks and the way tensors are cut may differ. Memory: one tensor of each checkpoint.
CheckpointDifference compare_checkpoints(
    const std::string& first,
    const std::string& second,
    const CheckpointProgress& progress = nullptr);

struct MergeOptions {
  std::string section = {};  // This one alone; empty: all.
  // Gives a tensor's name in the files. Unset: as it is.
  std::function<std::string(const std::string& name)> rename = nullptr;
  // Writes TO/SECTION.pt instead, which torch::load() reads into a module with these names. Memory:
  // the section. Warns where children without tensors are not known, as in checkpoints of older
  // versions; with `rename` they are left out.
  bool archives = false;
  CheckpointProgress progress = nullptr;
};

// Writes whole tensors into TO/SECTION.safetensors, which any program that knows safetensors reads;
// returns the files. Makes `to`, which must be empty. Memory: the largest tensor.
std::vector<std::string> merge_checkpoint(
    const std::string& folder,
    const std::string& to,
    const MergeOptions& options = {});

struct ImportOptions {
  std::string section = "model";
  std::map<std::string, std::string> values = {};
  // Gives a tensor's name in the checkpoint; one with an empty name is left out. Unset: as it is.
  std::function<std::string(const std::string& name)> rename = nullptr;
  CheckpointProgress progress = nullptr;
};

// Collective. Reads what this rank holds of the state's tensors straight from safetensors files, or
// archives that torch::save() made of modules, converted where dtypes differ; options.values are
// unused. Throws Error, on every rank, when a name of options.section is only in the state or only
// in the files, for another shape, and for a file that is missing or damaged; the state is then
// partly written. Memory: that of pages being read.
void load_tensor_files(
    const World& world,
    const std::vector<std::string>& files,
    CheckpointState& state,
    const ImportOptions& options = {});

// Makes a checkpoint of step 0, FOLDER/step-0, from safetensors files or archives that
// torch::save() made of modules; returns the names of its tensors. Throws Error when one of that
// step exists.
std::vector<std::string> import_checkpoint(
    const std::vector<std::string>& files,
    const std::string& folder,
    const ImportOptions& options = {});

}  // namespace sherd
