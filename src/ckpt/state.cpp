// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <utility>

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include "base/check.h"
#include "ckpt/dtypes.h"
#include "ckpt/state_access.h"
#include "compat/parameter_key.h"
#include "plan/checkpoint_reads.h"

namespace sherd {
namespace {

using ckpt::kModelSection;
constexpr const char* kGenerators = "generators";

std::string name_on(const std::string& generator, int rank) {
  return str(generator, ".rank-", rank);
}

void check_shard(const NamedShard& shard) {
  const auto& elements = shard.elements;
  SHERD_CHECK(
      elements.defined() && elements.layout() == at::kStrided &&
          !elements.is_meta() && !ckpt::name_of(elements.scalar_type()).empty(),
      "[ckpt] ", shard.name,
      ": expected a dense tensor with memory, of a dtype that safetensors "
      "has, found ",
      elements.defined() ? str(elements.layout(), " ", elements.device().str(),
                               " ", c10::toString(elements.scalar_type()))
                         : std::string("none"));
  SHERD_CHECK(
      at::has_internal_overlap(elements) != at::MemOverlap::Yes, "[ckpt] ",
      shard.name, ": expected elements with memory of their own, found shape ",
      elements.sizes(), " with strides ", elements.strides());
  SHERD_CHECK(
      shard.begin >= 0 && shard.ranks >= 1 &&
          shard.begin + elements.numel() <= ckpt::numel_of(shard.shape),
      "[ckpt] ", shard.name, ": expected elements of a tensor of ",
      ckpt::numel_of(shard.shape), ", found ", elements.numel(), " at ",
      shard.begin);
  SHERD_CHECK(
      shard.copies == Copies::kEqual || shard.ranks == 1, "[ckpt] ", shard.name,
      ": expected a tensor that every rank has whole with Copies::kRank0, "
      "found one that ",
      shard.ranks, " ranks hold together");
}

// Whether it would be an empty module in an archive of torch::save().
bool is_bare(const torch::nn::Module& module) {
  return module.is_serializable() && module.children().empty() &&
      module.parameters(/*recurse=*/false).empty() &&
      module.buffers(/*recurse=*/false).empty();
}

std::optional<int> rank_to_save(const NamedShard& shard) {
  if (shard.copies == Copies::kRank0) {
    return 0;
  }
  return shard.rank_to_save ? shard.rank_to_save() : std::nullopt;
}

// The part of this rank's elements that it saves. If copies differ, those who hold one of them save
// it, because parts of several copies would make a tensor that no rank had.
plan::ElementRange share_to_save(const NamedShard& shard, int rank, int size) {
  const auto saver = rank_to_save(shard);
  // A rank may also save its model alone.
  if (saver && *saver < size) {
    const bool mine = rank / shard.ranks == *saver / shard.ranks;
    return mine ? range_of(shard) : plan::ElementRange{};
  }
  return plan::share_of(
      range_of(shard), rank / shard.ranks, size / shard.ranks);
}

// A view of the same memory, 1-D if elements are in order.
at::Tensor in_place(const at::Tensor& tensor) {
  const auto plain = tensor.detach();
  return plain.is_contiguous() ? plain.view({-1}) : plain;
}

}  // namespace

void CheckpointAccess::check_section(const std::string& section) {
  const bool fine =
      !section.empty() && std::ranges::all_of(section, [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
            (c >= '0' && c <= '9') || c == '_' || c == '-';
      });
  SHERD_CHECK(
      fine, "[ckpt] expected a section of letters, digits, _ and -, found '",
      section, "'");
}

void CheckpointState::add(const std::string& section, NamedShard shard) {
  CheckpointAccess::check_section(section);
  check_shard(shard);
  SHERD_CHECK(
      names_.insert({section, shard.name}).second,
      "[ckpt] expected each name once in section ", section, ", found ",
      shard.name, " again");
  shard.elements = in_place(shard.elements);
  shards_.emplace_back(section, std::move(shard));
}

void CheckpointState::add(const NamedParameters& parameters) {
  add(kModelSection, parameters);
}

void CheckpointState::add(
    const std::string& section, const NamedParameters& parameters) {
  CheckpointAccess::check_section(section);  // This rank may have no slice.
  std::map<std::string, const WholeParameter*> whole;
  for (const auto& item : parameters.whole.items) {
    whole.emplace(item.name, &item);
  }
  for (const auto& item : parameters.items) {
    const auto found = whole.find(item.name);
    const bool sliced = found != whole.end();
    add(section,
        {.name = item.name,
         .shape = sliced ? found->second->shape : item.slice.sizes().vec(),
         .begin = sliced ? found->second->slice_begin : 0,
         .elements = item.slice.detach(),
         .ranks = parameters.whole.ranks,
         .rank_to_save = parameters.rank_to_save});
    whole.erase(item.name);
  }
  for (const auto& item : parameters.state_only) {
    add(section,
        {.name = item.name,
         .shape = item.slice.sizes().vec(),
         .elements = item.slice.detach(),
         .rank_to_save = parameters.rank_to_save});
  }
  for (const auto& [name, item] : whole) {  // This rank has no slice of these.
    names_.insert({section, name});
  }
  for (const auto& [name, first] : parameters.tied_names) {
    tied_names_.insert({{section, name}, first});
  }
  if (parameters.before_load) {
    before_load_.push_back(parameters.before_load);
  }
  const auto& publish = parameters.publish_loaded ? parameters.publish_loaded
                                                  : parameters.publish;
  if (publish) {
    publish_.push_back(publish);
  }
}

void CheckpointState::add(
    const std::string& section,
    const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  for (const auto& [name, tensor] : tensors) {
    add(section,
        {.name = name, .shape = tensor.sizes().vec(), .elements = tensor});
  }
}

// Also records children that no tensor's name shows, because torch::load() asks for them.
void CheckpointState::add_buffers(const torch::nn::Module& module) {
  modules_ = modules_.value_or(std::set<std::string>());
  for (const auto& child : module.named_modules("", /*include_self=*/false)) {
    if (is_bare(*child.value())) {
      modules_->insert(child.key());
    }
  }
  add_buffers(kModelSection, module);
}

void CheckpointState::add_buffers(
    const std::string& section, const torch::nn::Module& module) {
  CheckpointAccess::check_section(section);
  for (const auto& buffer : module.named_buffers()) {
    if (buffer.value().defined()) {
      add(section,
          {.name = buffer.key(),
           .shape = buffer.value().sizes().vec(),
           .elements = buffer.value(),
           .copies = Copies::kRank0});
    }
  }
}

void CheckpointState::add_generator(
    const std::string& name, const at::Generator& generator) {
  SHERD_CHECK(
      generator.defined() && generators_.emplace(name, generator).second,
      "[ckpt] expected a generator and each name once, found ",
      generator.defined() ? name + " again" : "none as " + name);
}

void CheckpointState::add_optimizer(
    const std::string& section,
    const NamedParameters& parameters,
    Tensors tensors) {
  CheckpointAccess::check_section(section);
  OptimizerState entry{
      .section = section, .slices = {}, .tensors = std::move(tensors)};
  for (const auto& item : parameters.whole.items) {
    entry.slices[item.name] = {
        .name = item.name,
        .shape = item.shape,
        .begin = item.slice_begin,
        .elements = {},
        .ranks = parameters.whole.ranks,
        .rank_to_save = parameters.rank_to_save};
  }
  // An optimizer of LibTorch may have been given the whole module's parameters.
  for (const auto* items : {&parameters.items, &parameters.state_only}) {
    for (const auto& item : *items) {
      auto& slice = entry.slices[item.name];
      if (slice.name.empty()) {
        slice.name = item.name;
        slice.shape = item.slice.sizes().vec();
        slice.rank_to_save = parameters.rank_to_save;
      }
      slice.elements = item.slice.detach();
    }
  }
  optimizers_.push_back(std::move(entry));
}

// An optimizer's state of a parameter has the extent of the slice, of the whole matrix, or is one
// number, which belongs to the rank of the parameter's first element.
std::vector<CheckpointAccess::LoadTarget> CheckpointAccess::optimizer_shards(
    const CheckpointState::OptimizerState& optimizer,
    const std::set<std::string>* made) {
  std::vector<LoadTarget> shards;
  const bool saving = made == nullptr;
  for (const auto& tensor :
       optimizer.tensors(saving ? std::set<std::string>() : *made)) {
    const auto found = optimizer.slices.find(tensor.parameter);
    SHERD_CHECK(
        found != optimizer.slices.end(), "[ckpt] section ", optimizer.section,
        " has state of ", tensor.parameter,
        ", which is none of the parameters it was added with");
    NamedShard shard = found->second;
    shard.name = tensor.key + "." + tensor.parameter;
    if (tensor.tensor.dim() == 0) {
      if (shard.begin > 0 && saving) {
        continue;
      }
      shard.shape = {};
      shard.begin = 0;
    } else if (
        !shard.elements.defined() ||
        tensor.tensor.numel() != shard.elements.numel()) {
      shard.begin = 0;
    }
    shard.elements = in_place(tensor.tensor);
    check_shard(shard);
    shards.push_back(
        {.section = optimizer.section,
         .shard = std::move(shard),
         .optional = true,
         .reset = tensor.reset});
  }
  return shards;
}

void CheckpointAccess::LoadTarget::clear() const {
  shard.elements.zero_();
  if (reset) {
    reset();
  }
}

std::vector<ckpt::TensorPiece> CheckpointAccess::pieces(
    const CheckpointState& state, int rank, int size) {
  const at::NoGradGuard no_grad;  // Reading is no forward.
  auto shards = state.shards_;
  for (const auto& optimizer : state.optimizers_) {
    for (auto& more : optimizer_shards(optimizer, /*made=*/nullptr)) {
      shards.emplace_back(std::move(more.section), std::move(more.shard));
    }
  }
  std::vector<ckpt::TensorPiece> pieces;
  for (auto& [section, shard] : shards) {
    SHERD_CHECK(
        size % shard.ranks == 0, "[ckpt] ", shard.name,
        ": expected a number of ranks that divides the world's ", size,
        ", found ", shard.ranks);
    // With LibTorch 2.12 or newer, a raw pointer to a sharded parameter is an error by itself.
    SHERD_CHECK(
        shard.elements.numel() == 0 ||
            shard.elements.const_data_ptr() != nullptr,
        "[ckpt] ", shard.name,
        ": expected a tensor with memory, found a parameter that is sharded "
        "now; add the handle's named_parameters() to the state");
    const auto mine = range_of(shard);
    const auto share = share_to_save(shard, rank, size);
    const bool nothing = ckpt::numel_of(shard.shape) == 0;
    if (share.empty() && !(nothing && rank == 0)) {
      continue;
    }
    pieces.push_back(
        {.section = section,
         .name = shard.name,
         .shape = shard.shape,
         .range = share,
         .elements = shard.elements.contiguous().view({-1}).narrow(
             0, share.begin - mine.begin, share.numel())});
  }
  for (const auto& [name, generator] : state.generators_) {
    const auto bytes = generator.get_state();
    pieces.push_back(
        {.section = kGenerators,
         .name = name_on(name, rank),
         .shape = {bytes.numel()},
         .range = {0, bytes.numel()},
         .elements = bytes});
  }
  return pieces;
}

ckpt::CheckpointMetadata CheckpointAccess::metadata(
    const CheckpointState& state) {
  ckpt::CheckpointMetadata metadata{.values = state.values};
  if (state.modules_) {
    metadata.part_of_rank_zero.modules.emplace(
        state.modules_->begin(), state.modules_->end());
  }
  for (const auto& [key, first] : state.tied_names_) {
    if (key.first == kModelSection) {
      metadata.part_of_rank_zero.tied.emplace(key.second, first);
    }
  }
  return metadata;
}

std::vector<CheckpointAccess::LoadTarget> CheckpointAccess::targets(
    const CheckpointState& state, int rank, const TargetOptions& options) {
  const auto wanted = [&](const std::string& section) {
    return !options.section || *options.section == section;
  };
  std::vector<LoadTarget> targets;
  for (const auto& [its_section, shard] : state.shards_) {
    if (wanted(its_section)) {
      compat::check_writable(shard.elements);
      targets.push_back({its_section, shard});
    }
  }
  for (const auto& optimizer : state.optimizers_) {
    if (!wanted(optimizer.section)) {
      continue;
    }
    std::set<std::string> made;
    for (const auto& [name, slice] : optimizer.slices) {
      if (!options.updated || options.updated({optimizer.section, name})) {
        made.insert(name);
      }
    }
    auto more = optimizer_shards(optimizer, &made);
    std::move(more.begin(), more.end(), std::back_inserter(targets));
  }
  if (!wanted(kGenerators)) {
    return targets;
  }
  for (const auto& [name, generator] : state.generators_) {
    const auto bytes = generator.get_state();
    targets.push_back(
        {.section = kGenerators,
         .shard =
             {.name = name_on(name, rank),
              .shape = {bytes.numel()},
              .elements = bytes},
         .optional = true,
         .loaded = [to = generator](const at::Tensor& found) mutable {
           to.set_state(found);
         }});
  }
  return targets;
}

std::set<std::string> CheckpointAccess::sections(const CheckpointState& state) {
  std::set<std::string> sections;
  for (const auto& [section, name] : state.names_) {
    sections.insert(section);
  }
  for (const auto& entry : state.optimizers_) {
    sections.insert(entry.section);
  }
  if (!state.generators_.empty()) {
    sections.insert(kGenerators);
  }
  return sections;
}

std::set<ckpt::TensorKey> CheckpointAccess::required_names(
    const CheckpointState& state) {
  std::set<ckpt::TensorKey> names;
  for (const auto& [section, name] : state.names_) {
    names.insert({section, name});
  }
  return names;
}

bool CheckpointAccess::is_generator(
    const CheckpointState& state, const ckpt::TensorKey& key) {
  const auto& [section, name] = key;
  return section == kGenerators &&
      state.generators_.contains(name.substr(0, name.rfind(".rank-")));
}

std::optional<ckpt::TensorKey> CheckpointAccess::first_of_tied(
    const CheckpointState& state, const ckpt::TensorKey& key) {
  const auto found = state.tied_names_.find({key.section, key.name});
  return found != state.tied_names_.end()
      ? std::optional(ckpt::TensorKey{key.section, found->second})
      : std::nullopt;
}

void CheckpointAccess::check_tied(
    const std::string& where,
    const ckpt::TensorKey& key,
    const ckpt::TensorKey& first,
    bool same) {
  SHERD_CHECK(
      same, "[ckpt] ", where, ": expected ", key.name, " to be the same as ",
      first.name,
      ", since the model has one parameter of both names; found other values");
}

ckpt::TensorKey CheckpointAccess::parameter_of(const ckpt::TensorKey& key) {
  return {key.section, key.name.substr(key.name.find('.') + 1)};
}

bool CheckpointAccess::may_contain(
    const CheckpointState& state, const ckpt::TensorKey& key) {
  const auto& [section, name] = key;
  if (state.names_.contains({section, name}) || is_generator(state, key) ||
      first_of_tied(state, key)) {
    return true;
  }
  const auto dot = name.find('.');
  return dot != std::string::npos &&
      std::ranges::any_of(state.optimizers_, [&](const auto& entry) {
           return entry.section == section &&
               entry.slices.contains(name.substr(dot + 1));
         });
}

void CheckpointAccess::before_load(const CheckpointState& state) {
  for (const auto& before_load : state.before_load_) {
    before_load();
  }
}

void CheckpointAccess::publish(const CheckpointState& state) {
  for (const auto& publish : state.publish_) {
    publish();
  }
}

}  // namespace sherd
