// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints: folders of safetensors files, each either complete or absent, that the ranks of a
// job save together and that a job with any other number of ranks can load.
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
#include <sherd/base/error.h>
#include <sherd/optim/named_parameters.h>
#include <sherd/world/world.h>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace sherd {

// Which values a checkpoint saves of a tensor that several ranks hold.
enum class Copies {
  kEqual,  // The copies are equal: each rank saves a part of the tensor.
  // The copies may differ: rank 0 saves its own, and loading gives it to all ranks.
  kRank0,
};

// The part of a tensor that this rank holds: elements [begin, begin + elements.numel()) of the
// flattened tensor of the given shape.
struct NamedShard {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;
  // On the CPU or on a device; no two elements share memory. It is read and written in the order of
  // indices, whatever its strides.
  at::Tensor elements;
  // The number of neighbouring ranks that hold the tensor together. Other groups of as many ranks
  // hold copies of it. 1: every rank has the whole tensor.
  int ranks = 1;
  Copies copies = Copies::kEqual;  // kRank0 needs `ranks` to be 1.
  // As NamedParameters::rank_to_save, called at each save: a rank of the group whose copy is saved if
  // copies may differ in spite of kEqual.
  std::function<std::optional<int>()> rank_to_save = nullptr;
};

// What a checkpoint saves and loads, as far as this rank holds it. Tensors are shared: they are
// read and written in place. An optimizer must outlive the state. Every rank adds the same. Thread
// rule: one thread.
class CheckpointState {
 public:
  // Adds a tensor to a section. A section groups tensors that belong together; its name has
  // letters, digits, "_" and "-". Throws Error for any other section name, for a tensor that cannot
  // be saved, and for a name that the section already has.
  void add(const std::string& section, NamedShard shard);

  // The parameters of fully_shard or replicate, frozen ones and those without elements, too, in
  // section "model"; loading publishes them. Those that options.ignored leaves alone are not among
  // them: add them by themselves.
  void add(const NamedParameters& parameters);
  // The same in another section, for a second model or for WeightAverage::averages().
  void add(const std::string& section, const NamedParameters& parameters);

  // The module's buffers, which are whole on every rank, in section "model". Buffers that differ
  // between ranks, such as running statistics, are saved from rank 0, and all ranks get those when
  // loading. Also adds the names of children that have no tensors, such as ReLU, so that
  // merge_checkpoint() can make an archive for torch::load(). Call it for a module without buffers,
  // too.
  void add_buffers(const torch::nn::Module& module);
  // The buffers in another section, which merge_checkpoint() does not make an archive of.
  void add_buffers(const std::string& section, const torch::nn::Module& module);

  // The state of one of sherd's optimizers, as tensors "exp_avg.NAME". Parameters that it has not
  // yet updated, such as frozen ones, have none; loading makes state only for those that have some
  // in the checkpoint. `parameters` are those that the optimizer was made with, or more.
  template <typename Optimizer>
    requires requires(Optimizer& optimizer) {
      optimizer.tensors(std::set<std::string>());
    }
  void add(
      const std::string& section,
      Optimizer& optimizer,
      const NamedParameters& parameters) {
    add_optimizer(
        section, parameters, [&optimizer](const std::set<std::string>& also) {
          return optimizer.tensors(also);
        });
  }

  // The same for Adam, AdamW, SGD, RMSprop and Adagrad of torch::optim. Throws Error for any other.
  void add(
      const std::string& section,
      torch::optim::Optimizer& optimizer,
      const NamedParameters& parameters);

  // Tensors that are whole and equal on every rank, such as GradScaler::state().
  void add(
      const std::string& section,
      const std::vector<std::pair<std::string, at::Tensor>>& tensors);

  // A random generator of this rank. When loading, each rank gets the state that the rank of the
  // same number saved; a rank that did not exist then keeps its own.
  void add_generator(const std::string& name, const at::Generator& generator);

  // Texts of the program. Rank 0's are saved, and loading gives them to every rank.
  std::map<std::string, std::string> values;

 private:
  friend class CheckpointAccess;
  // Makes the state of parameters named in `also` if there is none yet.
  using Tensors = std::function<std::vector<OptimizerTensor>(
      const std::set<std::string>& also)>;
  struct OptimizerState {
    std::string section;
    std::map<std::string, NamedShard> slices;  // By parameter name.
    Tensors tensors;
  };
  void add_optimizer(
      const std::string& section,
      const NamedParameters& parameters,
      Tensors tensors);

  std::vector<std::pair<std::string, NamedShard>> shards_;
  // Section and name of each entry of `shards_`, and of tensors that lie only on other ranks.
  std::set<std::pair<std::string, std::string>> names_;
  // By section and further name, as in NamedParameters.
  std::map<std::pair<std::string, std::string>, std::string> tied_names_;
  std::vector<OptimizerState> optimizers_;
  std::map<std::string, at::Generator> generators_;
  std::optional<std::set<std::string>> modules_;  // Those without tensors.
  std::vector<std::function<void()>> before_load_;
  std::vector<std::function<void()>> publish_;
};

// Called with the number of bytes of tensors that are done and the total. Must not throw.
using CheckpointProgress =
    std::function<void(std::int64_t done, std::int64_t all)>;

struct SaveOptions {
  // ---- behaviour

  // Tensors are copied, and a thread writes the copy while training goes on, so training only stops
  // for the copy. The price is the memory of that copy. One save runs at a time: the next one waits
  // for it and throws its failure.
  bool asynchronous = false;
  // After a save, old checkpoints are removed. Those whose step is a multiple of `keep_every`,
  // those of later steps, which an earlier run may have left, and the newest `keep_last` of all
  // others are kept. With keep_last = 0 none is removed; with keep_every = 0 no step is exempt.
  int keep_last = 0;
  std::int64_t keep_every = 0;
  // Other jobs save into the folder, too, as replicas do. It is then locked only during each save,
  // which waits for at most a minute for those of others. A checkpoint of the same step with the
  // same values is not saved again.
  bool shared = false;

  // ---- performance

  // No file is larger than this, except for a file of a single tensor.
  std::int64_t file_bytes_max = std::int64_t{4} << 30;
  // Reports this rank's progress; called by the writing thread if asynchronous.
  CheckpointProgress progress = nullptr;
};

// Saves into a folder that belongs to one run at a time: step 100 becomes FOLDER/step-100 by one
// rename, once all of it is on the disk. What a killed run left incomplete is removed at the start
// or, in a shared folder, before the next save. Thread rule: one thread.
class CheckpointSaver {
 public:
  // Collective over the world, which must outlive it. Makes the folder. Throws Error, on every
  // rank, if it cannot be made, if another run is using it, or if the host of a rank does not see
  // it, for instance because hosts have no common file system.
  CheckpointSaver(
      const World& world,
      const std::string& folder,
      const SaveOptions& options = {});
  // Waits until this rank's part of an asynchronous save is written. Only wait() tells whether the
  // save became complete.
  ~CheckpointSaver();
  CheckpointSaver(CheckpointSaver&&) noexcept;
  CheckpointSaver& operator=(CheckpointSaver&&) = delete;

  // Collective, between two steps. Replaces a checkpoint of the same step. Returns when the
  // checkpoint is complete or, if asynchronous, when the tensors are copied. Throws Error, on every
  // rank, which names the first rank that failed and why; nothing has changed then, and the next
  // save may succeed. If the asynchronous save before has failed and nobody has called wait(), it
  // throws that failure and does not begin this save.
  void save(std::int64_t step, const CheckpointState& state);

  // Collective. Waits until the last save is complete; throws if it failed.
  void wait();

  // Whether this rank is still writing its part of an asynchronous save; other ranks may be faster
  // or slower. Never waits.
  bool saving() const;

  // Collective. Returns the folder of the newest complete checkpoint, the same on every rank. Waits
  // for a save that is under way, whose failure the next save() or wait() throws.
  std::optional<std::string> newest() const;

 private:
  struct Impl;
  HandleState<std::unique_ptr<Impl>, "[ckpt] CheckpointSaver"> impl_;
};

struct LoadOptions {
  // If true, a name that only the state or only the checkpoint has is an error, which lists all of
  // them. Otherwise they are reported and left as they are. Generators are exempt from this, and so
  // is the optimizer state of a parameter for which the checkpoint has none: that state is reset to
  // what it is before the first update.
  bool strict = true;
  // Reads everything once more at first, so that nothing was written if the checkpoint turns out to
  // be damaged. load_newest_checkpoint() does so where `strict` is false: what an older checkpoint
  // lacks must not come from a damaged one. scatter_full_state() has nothing to read.
  bool verify_first = false;
};

struct LoadReport {
  // The next three describe the checkpoint; scatter_full_state() does not set them.
  std::string folder;
  std::int64_t step = 0;
  int world_size = 1;  // That of the job that saved it.
  // Each is "SECTION NAME"; over all ranks.
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;
  std::int64_t bytes_read = 0;  // Bytes of tensors that this rank has read.
};

// Collective. Reads the parts that this rank holds into the state's tensors, converting between
// dtypes if they differ, and reads the values. Every byte is verified by a checksum. Throws Error,
// on every rank, for a folder without a complete checkpoint, for a damaged file, if shapes differ,
// and as options.strict says; the state is then partly written.
LoadReport load_checkpoint(
    const World& world,
    const std::string& folder,
    CheckpointState& state,
    const LoadOptions& options = {});

// Collective. Loads the newest readable checkpoint of a folder, the same on every rank. Returns
// nothing if there is no checkpoint or no folder. For each newer one that is damaged, rank 0 logs a
// warning that names both. Throws Error, as load_checkpoint() does, if the checkpoint does not fit
// the state; and if there are checkpoints but none can be read, in which case it says what is wrong
// with the newest.
std::optional<LoadReport> load_newest_checkpoint(
    const World& world,
    const std::string& folder,
    CheckpointState& state,
    const LoadOptions& options = {});

// The same, for programs in which what is loaded depends on the checkpoint: calls `load` with one
// folder after another, from the newest. `load` is collective, too, and must throw kUnavailable on
// every rank for a checkpoint that cannot be read.
std::optional<LoadReport> load_newest_checkpoint(
    const World& world,
    const std::string& folder,
    const std::function<LoadReport(const std::string& checkpoint)>& load);

using FullTensorVisitor = std::function<void(
    const std::string& section,
    const std::string& name,
    const at::Tensor& tensor)>;

// Collective, between two steps. On rank 0, calls `visit` with each tensor of the state, whole and
// on the CPU, in order of section and name; `visit` may keep it. On other ranks `visit` is not
// called. Memory on rank 0: one tensor, and those that `visit` keeps. Throws Error, on every rank,
// if ranks have different tensors, or if a visit throws. Mirrors get_model_state_dict() with
// full_state_dict and cpu_offload.
void gather_full_state(
    const World& world,
    const CheckpointState& state,
    const FullTensorVisitor& visit);

// Whole tensors in memory, by section and name.
using FullState = std::map<std::string, std::map<std::string, at::Tensor>>;

// The same, but returns the tensors in the memory of rank 0; empty on other ranks. Every section of
// the state is there; that of an optimizer before its first step has no tensors.
FullState gather_full_state(const World& world, const CheckpointState& state);

// Collective, between two steps. The reverse of gather_full_state(): each rank gets its parts of
// the tensors in `full`, which only rank 0 needs to have; on other ranks it is not read. Publishes
// the parameters. Memory: the state of an optimizer that has none yet, and a copy of one tensor at
// a time if it is not contiguous; nothing else that grows with the model. For each parameter of an
// optimizer, `full` has either all of its state or, as before its first update, none. Generators of
// ranks that do not exist now are ignored. Throws Error, on every rank, which names the tensor, if
// only the state or only `full` has it (with options.strict false, such tensors are reported and
// left as they are), or if shapes or dtypes differ; the state keeps its values then. Also throws if
// a rank cannot take a tensor, such as a state that its generator refuses; the state is then partly
// written, and not published. Mirrors set_model_state_dict() and set_optimizer_state_dict() with
// full_state_dict and broadcast_from_rank0.
LoadReport scatter_full_state(
    const World& world,
    const FullState& full,
    CheckpointState& state,
    const LoadOptions& options = {});

// ---- Without a job: one process, no world. These throw Error as those above do. ----

// The complete checkpoint of the highest step in a folder; empty if there is none, or no folder.
std::optional<std::string> newest_checkpoint(const std::string& folder);

struct CheckpointContent {
  std::string folder;
  std::int64_t step = 0;
  int world_size = 1;  // That of the job that saved it.
  std::map<std::string, std::string> values;
  std::int64_t files = 0;  // The number of files with tensors.
  std::int64_t bytes = 0;  // Their size.
  struct Tensor {
    std::string section;
    std::string name;
    std::string dtype;  // As safetensors names it: "F32".
    std::vector<std::int64_t> shape;
    int parts = 1;  // The number of pieces in which it is saved.
  };
  std::vector<Tensor> tensors;  // In order of section and name.
};
CheckpointContent checkpoint_content(const std::string& folder);

// The section for the state of a communication hook, CommHook::state(). The ranks among which the
// hook reduces, those of a mesh's replicate axis, have tensors of equal names, shapes and dtypes with
// different values; a tensor that a rank lacks is saved as zeros. `mesh` is that of the handle or, if
// every rank has whole parameters, a mesh of replicas only.
inline constexpr const char* kHookSection = "hook";
using HookState = std::vector<std::pair<std::string, at::Tensor>>;
// Adds the state of a communication hook. Collective. Throws Error, on every rank, where one name has
// several shapes or dtypes.
void add_hook_state(
    CheckpointState& state, const HookState& hook, const Mesh& mesh);
// Returns tensors for this rank's part of the checkpoint's hook state: add them, load, and then
// pass them to CommHook::load(). Empty if the checkpoint has no hook state, or that of another
// mesh.
HookState room_for_hook_state(
    const CheckpointContent& content, const Mesh& mesh);

// Reads the whole checkpoint; verifies every checksum and every file's header, and that no element
// is missing. Returns the number of bytes of tensors.
std::int64_t verify_checkpoint(
    const std::string& folder, const CheckpointProgress& progress = nullptr);

struct CheckpointDifference {
  struct Tensor {
    std::string section;
    std::string name;
    std::array<std::string, 2> dtypes;
    std::array<std::vector<std::int64_t>, 2> shapes;
    // If shapes are equal: how many elements differ in value, and by how much at most.
    std::int64_t elements = 0;
    double largest_difference = 0.0;
  };
  // Each is "SECTION NAME".
  std::vector<std::string> only_in_first;
  std::vector<std::string> only_in_second;
  std::vector<Tensor> changed;      // They differ in dtype, shape or bits.
  std::vector<std::string> values;  // Names of values that differ.
  std::int64_t equal = 0;           // Number of tensors with the same bits.
  bool none() const;
};

// Compares two checkpoints tensor by tensor; their steps, numbers of ranks and the cuts of tensors
// may differ. Memory: one tensor of each checkpoint.
CheckpointDifference compare_checkpoints(
    const std::string& first,
    const std::string& second,
    const CheckpointProgress& progress = nullptr);

struct MergeOptions {
  std::string section = {};  // Only this one; empty: all.
  // Returns a tensor's name in the files. Unset: its own name.
  std::function<std::string(const std::string& name)> rename = nullptr;
  // Writes TO/SECTION.pt instead, which torch::load() reads into a module with these names. Memory:
  // the whole section. Warns if the checkpoint does not name children without tensors, as those of
  // older versions do not; with `rename` such children are left out.
  bool archives = false;
  CheckpointProgress progress = nullptr;
};

// Writes whole tensors into TO/SECTION.safetensors, which any program that knows safetensors can
// read, and returns the files. Makes `to`, which must be empty. Memory: the largest tensor.
std::vector<std::string> merge_checkpoint(
    const std::string& folder,
    const std::string& to,
    const MergeOptions& options = {});

struct ImportOptions {
  std::string section = "model";
  std::map<std::string, std::string> values = {};
  // Returns a tensor's name in the checkpoint; an empty name leaves it out. Unset: its own name.
  std::function<std::string(const std::string& name)> rename = nullptr;
  CheckpointProgress progress = nullptr;
};

// Collective. Reads the parts of the state's tensors that this rank holds straight from safetensors
// files or from archives that torch::save() made of modules, converting between dtypes if they
// differ. options.values is not used. Throws Error, on every rank, if only the state or only the
// files have a name of options.section, if shapes differ, or if a file is missing or damaged; the
// state is then partly written. Memory: the pages being read.
void load_tensor_files(
    const World& world,
    const std::vector<std::string>& files,
    CheckpointState& state,
    const ImportOptions& options = {});

// Makes a checkpoint of step 0, FOLDER/step-0, from safetensors files or from archives that
// torch::save() made of modules; returns the names of its tensors. Throws Error if a checkpoint of
// that step exists.
std::vector<std::string> import_checkpoint(
    const std::vector<std::string>& files,
    const std::string& folder,
    const ImportOptions& options = {});

}  // namespace sherd
