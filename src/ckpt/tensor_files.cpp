// SPDX-License-Identifier: Apache-2.0
#include "ckpt/tensor_files.h"

#include <cstdint>
#include <map>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include "base/check.h"
#include "ckpt/archive.h"
#include "ckpt/dtypes.h"
#include "ckpt/safetensors.h"
#include "ckpt/save_protocol.h"
#include "ckpt/state_access.h"

namespace sherd {
namespace ckpt {
namespace {

// Adds the tensors of an archive, which own their memory.
void add_archived(
    const ModuleArchive& archive,
    const ImportOptions& options,
    std::vector<TensorPiece>& pieces) {
  for (const auto& [found, tensor] : archive.tensors) {
    const auto name = options.rename ? options.rename(found) : found;
    if (!name.empty()) {
      pieces.push_back(
          {.section = options.section,
           .name = name,
           .shape = tensor.sizes().vec(),
           .range = {0, tensor.numel()},
           .elements = tensor.view({-1})});
    }
  }
}

// Adds the tensors of a mapped file, which must outlive them.
void add_pieces(
    const MappedFile& file,
    const std::string& path,
    const ImportOptions& options,
    std::vector<TensorPiece>& pieces) {
  const auto bytes = file.bytes();
  const auto header =
      parse_header(bytes, static_cast<std::int64_t>(bytes.size()), path);
  for (const auto& info : header.tensors) {
    const auto name = options.rename ? options.rename(info.name) : info.name;
    if (name.empty()) {
      continue;
    }
    const auto dtype = dtype_named(info.dtype, str(path, ": ", info.name));
    const auto numel = numel_of(info.shape);
    // It is only read, but from_blob has no const version.
    auto* data =
        const_cast<char*>(bytes.data()) + header.data_begin + info.begin;
    pieces.push_back(
        {.section = options.section,
         .name = name,
         .shape = info.shape,
         .range = {0, numel},
         .elements = at::from_blob(data, {numel}, dtype)});
  }
}

using PieceByName = std::map<TensorKey, const TensorPiece*>;

// Only names of one section, which is that of the files. `where` is for messages.
void compare_names(
    const CheckpointState& state,
    const std::string& section,
    const PieceByName& found,
    const std::string& where) {
  std::vector<std::string> missing;
  for (const auto& key : CheckpointAccess::required_names(state)) {
    if (key.section == section && !found.contains(key)) {
      missing.push_back(key.name);
    }
  }
  SHERD_CHECK(
      missing.empty(), "[ckpt] ", where,
      ": expected all tensors that the model has, found no ", list_of(missing));
  std::vector<std::string> unexpected;
  for (const auto& [key, piece] : found) {
    if (!CheckpointAccess::may_contain(state, key)) {
      unexpected.push_back(key.name);
    }
  }
  SHERD_CHECK(
      unexpected.empty(), "[ckpt] ", where,
      ": expected no tensor that the model lacks, found ", list_of(unexpected));
}

// A tied parameter is loaded under its first name.
void compare_tied(
    const CheckpointState& state,
    const PieceByName& found,
    const std::string& where) {
  for (const auto& [key, piece] : found) {
    const auto first = CheckpointAccess::first_of_tied(state, key);
    if (first) {
      CheckpointAccess::check_tied(
          where, key, *first,
          at::equal(piece->elements, found.at(*first)->elements));
    }
  }
}

void load(
    const std::vector<std::string>& files,
    const CheckpointState& state,
    int rank,
    const ImportOptions& options) {
  const at::NoGradGuard no_grad;
  SHERD_CHECK(!files.empty(), "[ckpt] expected files to load, found none");
  const TensorFiles opened(files, options);
  PieceByName found;
  for (const auto& piece : opened.pieces()) {
    const bool first =
        found.emplace(TensorKey{piece.section, piece.name}, &piece).second;
    SHERD_CHECK(
        first, "[ckpt] ", files.front(), ": expected each tensor once, found ",
        piece.name, " twice");
  }
  compare_names(state, options.section, found, files.front());
  compare_tied(state, found, files.front());
  const auto updated = CheckpointAccess::parameters_of(found);
  for (auto& target : CheckpointAccess::targets(
           state, rank,
           {.section = options.section, .updated = [&](const TensorKey& key) {
              return updated.contains(key);
            }})) {
    auto& shard = target.shard;
    const auto stored = found.find(target.key());
    if (stored == found.end()) {
      continue;  // It is optional: all others have been compared.
    }
    const auto& piece = *stored->second;
    SHERD_CHECK(
        piece.shape == shard.shape, "[ckpt] ", files.front(), ": ", shard.name,
        ": expected shape ", at::IntArrayRef(shard.shape), ", found ",
        at::IntArrayRef(piece.shape));
    const auto range = range_of(shard);
    shard.elements.copy_(piece.elements.slice(0, range.begin, range.end)
                             .view(shard.elements.sizes()));
    if (target.loaded) {
      target.loaded(shard.elements);
    }
  }
}

}  // namespace

TensorFiles::TensorFiles(
    const std::vector<std::string>& files, const ImportOptions& options) {
  for (const auto& path : files) {
    if (is_archive(path)) {
      const auto archive = read_archive(path);
      add_archived(archive, options, pieces_);
      if (!options.rename) {
        modules_ = modules_.value_or(std::vector<std::string>());
        modules_->insert(
            modules_->end(), archive.modules.begin(), archive.modules.end());
      }
      continue;
    }
    mapped_.push_back(MappedFile::open(path).value());
    add_pieces(mapped_.back(), path, options, pieces_);
  }
}

}  // namespace ckpt

void load_tensor_files(
    const World& world,
    const std::vector<std::string>& files,
    CheckpointState& state,
    const ImportOptions& options) {
  CheckpointAccess::before_load(state);
  on_all_or_none(ckpt::ranks_of(world), "loading tensors", [&] {
    ckpt::load(files, state, world.rank(), options);
  });
  CheckpointAccess::publish(state);
}

}  // namespace sherd
