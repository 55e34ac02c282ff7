// SPDX-License-Identifier: Apache-2.0
// Operations on checkpoints that need no job: merge, import, list, verify.
#include <map>
#include <utility>
#include <vector>

#include <sherd/ckpt/checkpoint.h>

#include "base/check.h"
#include "base/log.h"
#include "ckpt/archive.h"
#include "ckpt/dtypes.h"
#include "ckpt/progress.h"
#include "ckpt/reader.h"
#include "ckpt/safetensors.h"
#include "ckpt/save_protocol.h"
#include "ckpt/state_access.h"
#include "ckpt/tensor_files.h"

namespace sherd {
namespace {

using Sections = std::map<
    std::string,
    std::vector<std::pair<std::string, ckpt::CheckpointReader::StoredTensor>>>;

// Writes a section as one file of whole tensors.
void write_section(
    const ckpt::CheckpointReader& reader,
    const Sections::value_type& section,
    const MergeOptions& options,
    ckpt::FileSystem& files,
    const std::string& path,
    ckpt::ProgressMeter& meter) {
  std::vector<ckpt::TensorInfo> infos;
  for (const auto& [name, tensor] : section.second) {
    infos.push_back(
        {.name = options.rename ? options.rename(name) : name,
         .dtype = tensor.dtype,
         .shape = tensor.shape});
  }
  const auto header = ckpt::header_bytes(infos, {{"format", "pt"}});
  const auto out = files.create(path).value();
  out->write(header.data(), header.size()).throw_if_failed();
  std::vector<char> room;
  for (std::size_t i = 0; i < infos.size(); ++i) {
    const auto& info = infos[i];
    room.resize(static_cast<std::size_t>(info.end - info.begin));
    reader.read(
        {section.first, section.second[i].first},
        {0, ckpt::numel_of(info.shape)}, 0, room.data());
    out->write(room.data(), room.size()).throw_if_failed();
    meter.add(info.end - info.begin);
  }
  out->sync().throw_if_failed();
}

// The modules without tensors; warns if the checkpoint does not know them.
std::vector<std::string> modules_in(const ckpt::CheckpointReader& reader) {
  for (const auto& part : reader.parts()) {
    if (part.modules) {
      return *part.modules;
    }
  }
  log_warning(str(
      "[ckpt] ", reader.folder(),
      " does not name children without tensors, as ReLU and MaxPool: "
      "torch::load() into a module that has such finds none of them. "
      "CheckpointState::add_buffers() makes the next checkpoint name them"));
  return {};
}

// torch::load() looks for a tied parameter under each of its names.
void add_tied_names(
    const ckpt::CheckpointReader& reader, ckpt::ModuleArchive& content) {
  const auto& tied = reader.parts().front().tied;
  const std::map<std::string, at::Tensor> tensors(
      content.tensors.begin(), content.tensors.end());
  for (const auto& [name, first] : tied) {
    const auto found = tensors.find(first);
    if (found != tensors.end() && !tensors.contains(name)) {
      content.tensors.emplace_back(name, found->second);
    }
  }
}

// Writes a section as an archive like those of torch::save().
void archive_section(
    const ckpt::CheckpointReader& reader,
    const Sections::value_type& section,
    const MergeOptions& options,
    const std::string& path,
    ckpt::ProgressMeter& meter) {
  ckpt::ModuleArchive content;
  for (const auto& [name, stored] : section.second) {
    const auto tensor = reader.read_whole({section.first, name});
    content.tensors.emplace_back(
        options.rename ? options.rename(name) : name, tensor);
    meter.add(static_cast<std::int64_t>(tensor.nbytes()));
  }
  if (section.first == ckpt::kModelSection && !options.rename) {
    content.modules = modules_in(reader);
    add_tied_names(reader, content);
  }
  ckpt::write_archive(path, content);
}

}  // namespace

std::vector<std::string> import_checkpoint(
    const std::vector<std::string>& files,
    const std::string& folder,
    const ImportOptions& options) {
  CheckpointAccess::check_section(options.section);
  const ckpt::TensorFiles opened(files, options);
  const auto disk = ckpt::make_posix_file_system();
  disk->make_folder(folder).throw_if_failed();
  const auto place = folder + "/" + ckpt::folder_name(0);
  SHERD_CHECK_AS(
      kUnavailable, !disk->exists(place).value(), "[ckpt] ", folder,
      ": expected a folder without a checkpoint of step 0, found one");
  const auto lock = ckpt::lock_folder(folder).value();
  const ckpt::SaveContext context{
      .files = *disk,
      .folder = folder,
      .ranks = {},
      .options = {.progress = options.progress}};
  const ckpt::CheckpointMetadata metadata{
      .values = options.values,
      .part_of_rank_zero = {.modules = opened.modules()}};
  save_pieces(context, 0, opened.pieces(), metadata).throw_if_failed();
  std::vector<std::string> names;
  for (const auto& piece : opened.pieces()) {
    names.push_back(piece.name);
  }
  return names;
}

std::optional<std::string> newest_checkpoint(const std::string& folder) {
  const auto files = ckpt::make_posix_file_system();
  const auto steps = ckpt::complete_steps(*files, folder).value();
  return steps.empty()
      ? std::nullopt
      : std::optional(folder + "/" + ckpt::folder_name(steps.back()));
}

CheckpointContent checkpoint_content(const std::string& folder) {
  const ckpt::CheckpointReader reader(folder);
  CheckpointContent content{
      .folder = folder,
      .step = reader.manifest().step,
      .world_size = reader.manifest().world_size,
      .values = reader.manifest().values,
      .tensors = {}};
  for (const auto& part : reader.parts()) {
    for (const auto& file : part.files) {
      ++content.files;
      content.bytes += file.bytes;
    }
  }
  for (const auto& [key, tensor] : reader.tensors()) {
    content.tensors.push_back(
        {.section = key.section,
         .name = key.name,
         .dtype = tensor.dtype,
         .shape = tensor.shape,
         .parts = static_cast<int>(tensor.pieces.size())});
  }
  return content;
}

std::int64_t verify_checkpoint(
    const std::string& folder, const CheckpointProgress& progress) {
  return ckpt::CheckpointReader(folder).verify(progress);
}

std::vector<std::string> merge_checkpoint(
    const std::string& folder,
    const std::string& to,
    const MergeOptions& options) {
  const ckpt::CheckpointReader reader(folder);
  const auto files = ckpt::make_posix_file_system();
  files->make_folder(to).throw_if_failed();
  const auto there = files->list(to).value();
  SHERD_CHECK_AS(
      kUnavailable, there.empty(), "[ckpt] ", to,
      ": expected an empty folder, found ", there.front(), " in it");
  Sections sections;
  std::int64_t bytes = 0;
  for (const auto& [key, tensor] : reader.tensors()) {
    if (options.section.empty() || options.section == key.section) {
      sections[key.section].emplace_back(key.name, tensor);
      bytes += ckpt::numel_of(tensor.shape) * ckpt::element_bytes(tensor.dtype);
    }
  }
  SHERD_CHECK(
      !sections.empty(), "[ckpt] ", folder, ": expected a section ",
      options.section, ", found none");
  ckpt::ProgressMeter meter(options.progress, bytes);
  std::vector<std::string> written;
  std::string draft;
  try {
    for (const auto& section : sections) {
      draft = to + "/" + section.first + ".new";
      if (options.archives) {
        archive_section(reader, section, options, draft, meter);
      } else {
        write_section(reader, section, options, *files, draft, meter);
      }
      const auto path = to + "/" + section.first +
          (options.archives ? ".pt" : ".safetensors");
      files->rename(draft, path).throw_if_failed();
      written.push_back(path);
    }
  } catch (...) {
    // The next call expects an empty folder again.
    written.push_back(draft);
    for (const auto& path : written) {
      (void)files->remove(path);
    }
    throw;
  }
  return written;
}

}  // namespace sherd
