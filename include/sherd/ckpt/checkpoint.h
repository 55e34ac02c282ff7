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
//   if (const auto newest = saver.newest()) {
//     sherd::load_checkpoint(world, *newest, state);
//   }
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
#include <sherd/world/world.h>
#include <sherd/optim/named_parameters.h>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace sherd {

// What a checkpoint saves of a tensor that several ranks hold.
enum class Copies {
  kEqual,  // They are equal: each rank saves a part of its own.
  kRank0,  // They may differ: rank 0 saves its own, and loading gives it to all.
};

// A tensor as this rank holds it: elements [begin, begin + elements.numel()) of
// the flattened tensor of that shape.
struct NamedShard {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;
  // On the CPU, none in the memory of another; read and written in the order of
  // their indices, whatever their strides.
  at::Tensor elements;
  // Ranks that hold the tensor together; the others hold copies of theirs, in
  // groups of as many ranks that are neighbours. 1: every rank has all of it.
  int ranks = 1;
  Copies copies = Copies::kEqual;  // kRank0 needs `ranks` of 1.
};

// What a checkpoint keeps, as far as this rank holds it. It shares memory with
// who gave tensors, and reads and writes them where they lie; an optimizer must
// outlive it. Every rank adds the same. Thread rule: one thread.
class CheckpointState {
 public:
  // A section is what belongs together: letters, digits, "_" and "-". Throws Error
  // for another name, a tensor that cannot be saved and a name that comes twice.
  void add(const std::string& section, NamedShard shard);

  // Of fully_shard or replicate, as section "model"; loading publishes.
  void add(const NamedParameters& parameters);

  // Those of the module, which every rank has whole, in section "model". Where
  // ranks differ, as running statistics do, rank 0's are saved, and all ranks
  // have those after loading.
  void add_buffers(const torch::nn::Module& module);

  // What one of sherd's optimizers remembers, as tensors "exp_avg.NAME"; that of
  // parameters that it has not updated yet is left out. `parameters` are those
  // that the optimizer was made with, or more.
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

  // The same of Adam, AdamW, SGD, RMSprop and Adagrad of torch::optim. Throws
  // Error for another.
  void add(
      const std::string& section,
      torch::optim::Optimizer& optimizer,
      const NamedParameters& parameters);

  // A random generator, of which each rank has its own, by the process's name for
  // it. Loading gives a rank what the rank of the same number has saved; where
  // there was none, as for those that are more now, it stays as it is.
  void add_generator(const std::string& name, const at::Generator& generator);

  // Texts: rank 0's are saved, every rank gets them.
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
  // Section and name of those, and of what lies on other ranks alone.
  std::set<std::pair<std::string, std::string>> names_;
  std::vector<OptimizerState> optimizers_;
  std::map<std::string, at::Generator> generators_;
  std::vector<std::function<void()>> publish_;
};

// How many bytes of tensors are done, of how many; must not throw.
using CheckpointProgress =
    std::function<void(std::int64_t done, std::int64_t all)>;

struct SaveOptions {
  // Behaviour. Tensors are copied and written by a thread beside training, which
  // stops for the copy alone; costs that memory. One save at a time: the next one
  // waits for it, and throws what it failed with.
  bool asynchronous = false;
  // Behaviour. After a save older ones are removed: all but so many, and but those
  // of steps that `keep_every` divides. 0: none is removed; no step is special.
  int keep_last = 0;
  std::int64_t keep_every = 0;
  // Behaviour. Others save into the folder, too, as replicas do: it is locked for
  // each save alone, which waits for that of others, a minute at most. One of the
  // same step that is there and has the same values is not saved again.
  bool shared = false;
  // Performance. A file is no larger, save one of a single tensor.
  std::int64_t file_bytes_max = std::int64_t{4} << 30;
  // Of this rank's part; asynchronous, called by the thread that writes.
  CheckpointProgress progress = nullptr;
};

// Saves into a folder, which belongs to one run at a time: step 100 becomes
// FOLDER/step-100, in one move when all of it is on the disk. What a killed run
// left of an incomplete one is removed, at the start or, in a shared folder,
// before the next save. Thread rule: one thread.
class CheckpointSaver {
 public:
  // Collective over the world, which must outlive it. Makes the folder. Throws
  // Error, on every rank, when it cannot be made or another run has it.
  CheckpointSaver(
      const World& world,
      const std::string& folder,
      const SaveOptions& options = {});
  // Of an asynchronous save it waits until this rank's part is written; wait()
  // says whether it became complete.
  ~CheckpointSaver();
  CheckpointSaver(CheckpointSaver&&) noexcept;
  CheckpointSaver& operator=(CheckpointSaver&&) = delete;

  // Collective, between two steps. One of the same step is replaced. Throws
  // Error, on every rank, naming the first that failed and why: nothing has
  // changed then, and the next save may do better. Returns when it is complete,
  // or, asynchronous, when tensors were copied.
  void save(std::int64_t step, const CheckpointState& state);

  // Collective. Until the last save is complete; throws what it failed with.
  void wait();

  // Never waits. Whether this rank still writes its part of an asynchronous save;
  // others may be faster or slower.
  bool saving() const;

  // Collective. The folder of the newest complete one, the same on every rank.
  std::optional<std::string> newest() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct LoadOptions {
  // Behaviour. What the state has and the checkpoint lacks, or the other way
  // round, is an error that lists it; else it is reported and left as it is.
  bool strict = true;
};

struct LoadReport {
  std::int64_t step = 0;
  int world_size = 1;  // That saved it.
  // "SECTION NAME" each, of all ranks.
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;
  std::int64_t bytes_read = 0;  // By this rank, of tensors.
};

// Collective. Reads what this rank holds into the state's tensors, converted
// where dtypes differ, and its values. Every byte is compared with its checksum.
// Throws Error, on every rank, for a folder that holds no complete checkpoint, a
// damaged file, another shape, and as options.strict says; the state is then
// partly written.
LoadReport load_checkpoint(
    const World& world,
    const std::string& folder,
    CheckpointState& state,
    const LoadOptions& options = {});

using FullTensorVisitor = std::function<void(
    const std::string& section,
    const std::string& name,
    const at::Tensor& tensor)>;

// Collective, between two steps. On rank 0 `visit` gets each tensor of the state
// whole, on the CPU, in order of section and name; it may keep it. Other ranks'
// is not called. Memory: on rank 0 one tensor, more as `visit` keeps them. Throws
// Error, on every rank, when ranks have different tensors, and when a visit
// throws. Mirrors get_model_state_dict() with full_state_dict and cpu_offload.
void gather_full_state(
    const World& world,
    const CheckpointState& state,
    const FullTensorVisitor& visit);

// ---- Without a job: one process, no world. Throw Error as above. ----

// The complete one of the highest step in a folder; none where there is no folder.
std::optional<std::string> newest_checkpoint(const std::string& folder);

struct CheckpointContent {
  std::string folder;
  std::int64_t step = 0;
  int world_size = 1;  // That saved it.
  std::map<std::string, std::string> values;
  std::int64_t files = 0;  // Of tensors.
  std::int64_t bytes = 0;  // Theirs.
  struct Tensor {
    std::string section;
    std::string name;
    std::string dtype;  // As safetensors has it: "F32".
    std::vector<std::int64_t> shape;
    int parts = 1;  // In so many pieces.
  };
  std::vector<Tensor> tensors;  // By section and name.
};
CheckpointContent checkpoint_content(const std::string& folder);

// Reads all of it: every checksum, every file's header, and that no element is
// missing. Returns the bytes of tensors.
std::int64_t verify_checkpoint(
    const std::string& folder, const CheckpointProgress& progress = nullptr);

struct CheckpointDifference {
  struct Tensor {
    std::string section;
    std::string name;
    std::array<std::string, 2> dtypes;
    std::array<std::vector<std::int64_t>, 2> shapes;
    // Where shapes are equal: how many differ in value, and by how much at most.
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

// Reads both. Steps, ranks and how tensors are cut may differ. Memory: a tensor of
// each.
CheckpointDifference compare_checkpoints(
    const std::string& first,
    const std::string& second,
    const CheckpointProgress& progress = nullptr);

struct MergeOptions {
  std::string section = {};  // That one alone; empty: all.
  // Of a tensor's name. Empty: as it is.
  std::function<std::string(const std::string& name)> rename = nullptr;
  // TO/SECTION.pt instead, which torch::load() reads into a module with these
  // names. Memory: the section.
  bool archives = false;
  CheckpointProgress progress = nullptr;
};

// Writes the tensors whole, into TO/SECTION.safetensors, which any program that
// knows safetensors reads; returns the files. Memory: the largest tensor. `to` is
// made, and must be empty.
std::vector<std::string> merge_checkpoint(
    const std::string& folder,
    const std::string& to,
    const MergeOptions& options = {});

struct ImportOptions {
  std::string section = "model";
  std::map<std::string, std::string> values = {};
  // Of a tensor's name; an empty one is left out. Unset: as it is.
  std::function<std::string(const std::string& name)> rename = nullptr;
  CheckpointProgress progress = nullptr;
};

// Makes a checkpoint of step 0 in `folder`, FOLDER/step-0, of the tensors of
// safetensors files, or of archives that torch::save() made of modules; returns the
// names it has. Throws Error when one of that step is there.
std::vector<std::string> import_checkpoint(
    const std::vector<std::string>& files,
    const std::string& folder,
    const ImportOptions& options = {});

}  // namespace sherd
